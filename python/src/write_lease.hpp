#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>

#include "host_array.hpp"

namespace unimem::python {

class Window;

/// What the taker of a lease is known to do with the memory.
enum class Taker : std::uint8_t {
  writes,     ///< it asked for memory to write
  may_write,  ///< it could not say, or be told, whether it writes
};

/// Host memory of a buffer in the hands of code that writes it and says only when it is done: it is current when the
/// lease is taken, and counts as written when the lease ends. Until then it neither moves nor goes, and device work on
/// it sees what was there before, as for a mapping.
///
/// A lease ends where an error cannot be raised, in the garbage collector among other places: what it comes to then,
/// such as a conflict with what a device wrote meanwhile, is raised by the next access to the buffer. Used with the
/// interpreter's lock held.
class WriteLease {
 public:
  /// Waits for the work on the window, and releases the interpreter's lock meanwhile. Throws what `map` throws.
  WriteLease(Window const& window, Taker taker);
  WriteLease(HostWrite write, Taker taker) noexcept : write_(std::move(write)), taker_(taker) {}
  WriteLease(WriteLease const&) = delete;
  WriteLease& operator=(WriteLease const&) = delete;
  /// Counts the memory as written, unless it was given up. In a kernel that the counting would have to wait for, the
  /// main thread does it soon after.
  ~WriteLease();

  [[nodiscard]] void* address() const { return write_.address(); }

  /// The memory was not handed over after all, and nothing was written.
  void give_up() { HostWrite const given_up = std::move(write_); }

 private:
  WriteLease(WriteLease&&) noexcept = default;

  void end();
  /// Whether a device has written to it meanwhile, so that who may only have read must not overrule that: the next
  /// access to the buffer raises it.
  [[nodiscard]] bool has_been_overtaken() const;

  HostWrite write_;
  Taker taker_;
};

/// A plain array over the window's memory, which counts as written when the array and all that shares its memory are
/// gone; and its lease.
[[nodiscard]] nanobind::tuple array_that_may_be_written(Window const& window);
/// The same over the elements of a HostArray; None where its writes have not to be told, or are nobody's.
[[nodiscard]] nanobind::object elements_that_may_be_written(nanobind::handle array);

void bind_write_leases(nanobind::module_& m);

}  // namespace unimem::python
