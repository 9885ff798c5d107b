#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/device_lease.hpp>
#include <unimem/device/device.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace unimem::python {

/// A buffer's memory on a device, as `UnifiedBuffer.device` gives it: a lease, which keeps that memory where it is for
/// as long as the array lives, or anything that was made from it. Reading and writing through it is its user's
/// business, as with any pointer: what is written is declared with `mark_device_dirty`.
class DeviceArray {
 public:
  DeviceArray(std::shared_ptr<BufferCore> core, DeviceLease lease, Device& device, std::vector<std::size_t> shape,
              nanobind::object dtype);
  DeviceArray(DeviceArray const&) = delete;
  DeviceArray& operator=(DeviceArray const&) = delete;
  ~DeviceArray();

  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] std::vector<std::size_t> const& shape() const noexcept { return shape_; }
  [[nodiscard]] nanobind::object const& dtype() const noexcept { return dtype_; }
  [[nodiscard]] DeviceMemory memory() const noexcept { return lease_.memory(); }
  /// Null where device memory has no address.
  [[nodiscard]] void* address() const { return lease_.address(); }

  /// What is in the device's memory now, copied to the host by the device's own queue.
  [[nodiscard]] nanobind::object to_numpy() const;
  /// Overwrites the device's memory with an array of this shape, cast as `copy_from` of a buffer does.
  void upload(nanobind::handle given);

  /// (kind, number) as DLPack counts them.
  [[nodiscard]] std::pair<int, int> dlpack_device() const;
  /// An object with `__dlpack__` over this memory, kept by `self`. Throws UnsupportedOperation for dtypes DLPack has
  /// not.
  [[nodiscard]] nanobind::object exported(nanobind::handle self) const;
  /// `__cuda_array_interface__`, version 3; AttributeError off CUDA.
  [[nodiscard]] nanobind::dict cuda_interface() const;

 private:
  std::shared_ptr<BufferCore> core_;
  DeviceLease lease_;
  Device& device_;
  std::vector<std::size_t> shape_;
  nanobind::object dtype_;
};

void bind_device_arrays(nanobind::module_& m);

}  // namespace unimem::python
