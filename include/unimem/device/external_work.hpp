#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/event.hpp>

#include <exception>
#include <utility>

namespace unimem {

/// Work that something outside the library carries out (a network, another library's thread) and whose end the caller
/// tells. Its event is one like any other: buffers order their work behind it, threads and coroutines wait for it. As
/// the work of a buffer (`use_on_device`) it is all that there is at the buffer's memory: one that never began is
/// believed.
///
/// The work has begun when this is made. One thread at a time uses the object, whichever that is; its event is
/// thread-safe. Move-only; one that was moved from stands for nothing.
class UNIMEM_API ExternalWork {
 public:
  /// Whether work that failed had touched what it was to write.
  enum class Began : bool { no, yes };

  /// Throws UnsupportedOperation in a forked child, where what its parent had begun would never end.
  ExternalWork();
  ExternalWork(ExternalWork&& other) noexcept
      : control_(std::exchange(other.control_, nullptr)), event_(std::exchange(other.event_, {})) {}
  ExternalWork& operator=(ExternalWork&& other) noexcept;
  /// Work whose end was not told fails with an UnsupportedOperation, and counts as begun.
  ~ExternalWork();

  [[nodiscard]] Event event() const noexcept { return event_; }

  /// The work has ended well: what it has written is seen by all that wait for the event.
  void succeed() noexcept;

  /// The work has ended badly. With `Began::no` buffers take back that it was to write them: they hold what they held.
  void fail(std::exception_ptr failure, Began began = Began::yes) noexcept;

 private:
  void finish(std::exception_ptr failure) noexcept;
  void abandon() noexcept;

  detail::QueueControl* control_;
  Event event_;
};

}  // namespace unimem
