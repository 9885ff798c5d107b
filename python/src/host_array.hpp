#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/device_lease.hpp>
#include <unimem/core/byte_ranges.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace unimem::python {

/// A write to a buffer's host memory that is about to happen, or has happened.
class HostWrite {
 public:
  /// `parts`: what of `range`, where that is not all of it.
  HostWrite(std::shared_ptr<BufferCore> core, ByteRange range, DeviceLease hold, ByteRanges parts = {}) noexcept
      : core_(std::move(core)), range_(range), hold_(std::move(hold)), parts_(std::move(parts)) {}
  HostWrite(HostWrite&&) noexcept = default;
  HostWrite& operator=(HostWrite&&) = delete;
  ~HostWrite();

  /// Counts the range as written, unless the buffer has let the memory go since. Once. Needs no memory: the bytes have
  /// been written, so without any to record it the next operation on the buffer does so first.
  void done();
  /// For callers that cannot throw: what `done` would throw is raised by the next access to the buffer.
  void done_quietly() noexcept;

  /// Null once it is done.
  [[nodiscard]] std::shared_ptr<BufferCore> const& core() const noexcept { return core_; }
  [[nodiscard]] ByteRange range() const noexcept { return range_; }
  /// Of the first byte of the range.
  [[nodiscard]] void* address() const noexcept { return hold_.address(); }

 private:
  std::shared_ptr<BufferCore> core_;
  ByteRange range_;
  DeviceLease hold_;
  ByteRanges parts_;
};

/// What keeps a buffer's host memory where it is while NumPy arrays point at it, and is told when they are written.
/// Arrays that survive the buffer, or a `free`, keep the memory they were made for; what is written to them then is
/// not looked at any more.
///
/// Thread-safe as the buffer is. Used with the interpreter's lock held; its functions that wait release it.
class HostHold {
 public:
  /// `window`: what of the buffer the lease holds.
  HostHold(std::shared_ptr<BufferCore> core, DeviceLease lease, ByteRange window);
  HostHold(HostHold const&) = delete;
  HostHold& operator=(HostHold const&) = delete;
  ~HostHold();

  [[nodiscard]] std::byte* begin() const noexcept { return begin_; }

  /// Whether an array's elements lie in this memory.
  [[nodiscard]] bool covers(nanobind::handle array) const;

  /// Before elements of `array` are written: brings all that lies between its first and last byte up to date on the
  /// host and waits for the work that still reads it. Nothing if the array is of other memory, cannot be written, or if
  /// the buffer no longer uses this memory. With tracking by pages or by hand nothing has to be said afterwards either.
  /// `axis` and `chosen` as for `written_parts`: what counts as written afterwards.
  [[nodiscard]] std::optional<HostWrite> before_write(nanobind::handle array, int axis, nanobind::handle chosen);

  /// Whether what is written to the memory counts only where it is said: not with tracking by pages or by hand.
  [[nodiscard]] bool has_to_be_told() const noexcept { return core_->tracking() == Tracking::access; }

 private:
  [[nodiscard]] std::optional<ByteRange> bytes_of(nanobind::handle array) const;

  std::shared_ptr<BufferCore> core_;
  DeviceLease lease_;
  ByteRange window_;
  std::byte* begin_;
};

/// A NumPy array (unimem.HostArray) over `hold`'s memory.
[[nodiscard]] nanobind::object make_host_array(std::unique_ptr<HostHold> hold, std::vector<std::size_t> const& shape,
                                               nanobind::handle dtype);

/// A plain array over memory that `owner` keeps, or for None unowned, in C order.
[[nodiscard]] nanobind::object make_plain_array(void* data, std::vector<std::size_t> const& shape,
                                                nanobind::handle dtype, bool writable, nanobind::handle owner);

/// The hold of an array that is a HostArray over a buffer's memory; null for any other, and for one whose elements lie
/// elsewhere by now.
[[nodiscard]] HostHold* hold_of(nanobind::handle array);

/// A plain, writable array over the elements of another one, of memory that `owner` keeps.
[[nodiscard]] nanobind::object make_plain_array_over(nanobind::handle array, nanobind::handle owner);

/// Has a plain array without an owner keep the memory of `lease`, which it shows; nothing if that is empty.
void keep_memory(nanobind::handle array, std::shared_ptr<BufferCore> core, DeviceLease lease, ByteRange window);

}  // namespace unimem::python
