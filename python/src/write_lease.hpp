#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/device_lease.hpp>
#include <unimem/core/byte_ranges.hpp>

#include <nanobind/nanobind.h>

#include <Python.h>

#include <cstdint>
#include <memory>

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
  WriteLease(WriteLease const&) = delete;
  WriteLease& operator=(WriteLease const&) = delete;
  /// Counts the memory as written, unless it was given up. In a kernel that the counting would have to wait for, the
  /// main thread does it soon after.
  ~WriteLease();

  [[nodiscard]] void* address() const { return hold_.address(); }

  /// The memory was not handed over after all, and nothing was written.
  void give_up();

 private:
  WriteLease(WriteLease&&) noexcept = default;

  void end();
  [[nodiscard]] bool device_wrote_meanwhile() const;

  std::shared_ptr<BufferCore> core_;  ///< null once it has ended
  ByteRange range_;
  DeviceLease hold_;
  Taker taker_;
};

/// Python's `bf_getbuffer` of a window with PyBUF_WRITABLE, and its `bf_releasebuffer`.
int lend_to_write(nanobind::handle window, Py_buffer* view, int flags);
void take_back(PyObject* window, Py_buffer* view) noexcept;

/// A plain array over the window's memory, which counts as written when the array and all that shares its memory are
/// gone; and its lease.
[[nodiscard]] nanobind::tuple array_that_may_be_written(Window const& window);

void bind_write_leases(nanobind::module_& m);

}  // namespace unimem::python
