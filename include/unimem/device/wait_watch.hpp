#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>

#include <string_view>

namespace unimem {

/// A wait inside of the library was ended by the process's WaitWatch. The operation that waited has changed nothing,
/// and may be called again; work under way goes on.
class UNIMEM_API WaitInterrupted final : public detail::RuntimeError {
 public:
  /// `what` as in "waiting for work".
  explicit WaitInterrupted(std::string_view what);
  ~WaitInterrupted() override;
};

/// How a program ends waits inside of the library, such as when its user presses Ctrl-C. A watched thread asks every
/// 50 ms while it waits for a buffer's lock, for work before an operation on a buffer begins, for its turn to make room
/// on a device, or for memory that other threads give back to a pool; where an end is wanted, the wait throws
/// WaitInterrupted. Not ended are `Event::wait` (`wait_until` serves such programs), what has to be finished (copies
/// under way, the end of a mapping, destructors), compilers of drivers, and waits in the middle of a kernel for work.
///
/// Both are called with locks of buffers held: they call nothing of the library, and do not wait for long.
struct WaitWatch {
  /// Whether the calling thread is watched. Asked when a wait begins.
  bool (*watches)() noexcept;
  /// Whether the calling thread's waits are to end. What is swallowed on the way out, such as by a search for memory
  /// elsewhere, is asked again at the next wait: it stays so until the operation has returned.
  bool (*wants_end)() noexcept;
};

/// Sets the process's watch; null: none. `watch` lives for good. Thread-safe.
UNIMEM_API void set_wait_watch(WaitWatch const* watch) noexcept;

}  // namespace unimem
