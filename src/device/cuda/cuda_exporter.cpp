#include "device/cuda/cuda_exporter.hpp"

#include <unimem/core/error.hpp>

#include "device/process_end.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace unimem::detail::cuda {

CudaExporter::CudaExporter(ContextRef const& gpu, Health& health, Device device, PageOwner& owner)
    : gpu_(gpu), health_(health), owner_(owner) {
  properties_.location = {LocationType::device, device};
  properties_.handle_types = HandleType::posix_file_descriptor;
  health_.check(gpu_.driver.cuMemGetAllocationGranularity(&page_bytes_, &properties_, Granularity::recommended),
                "cuMemGetAllocationGranularity");
}

DeviceMemory CudaExporter::create(std::size_t bytes) {
  return put_together(bytes, [&](Piece& piece) {
    constexpr auto call = "cuMemCreate";
    auto const code = gpu_.driver.cuMemCreate(&piece.handle, piece.bytes, &properties_, 0);
    if (code == Result::out_of_memory) refuse_memory(gpu_, bytes, call);
    health_.check(code, call);
  });
}

int CudaExporter::descriptor_of(DeviceMemory memory) {
  constexpr auto call = "cuMemExportToShareableHandle";
  if (driver_gone()) throw UnsupportedOperation(call, gpu_.device_id, process_end_reason);
  CurrentContext const current{gpu_};
  std::lock_guard const lock{mutex_};
  auto const found = pieces_.find(memory.object);
  if (found == pieces_.end()) {
    throw InvalidArgument("memory", fmt::format("{:#x}", memory.object), "memory that was made to be exported");
  }
  int descriptor = -1;
  health_.check(
      gpu_.driver.cuMemExportToShareableHandle(&descriptor, found->second.handle, properties_.handle_types, 0), call);
  return descriptor;
}

DeviceMemory CudaExporter::open(int descriptor, std::size_t bytes) {
  try {
    return put_together(bytes, [&](Piece& piece) {
      constexpr auto call = "cuMemImportFromShareableHandle";
      auto* const as_pointer = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
      auto const code = gpu_.driver.cuMemImportFromShareableHandle(&piece.handle, as_pointer, properties_.handle_types);
      if (code == Result::out_of_memory) refuse_memory(gpu_, bytes, call);
      health_.check(code, call);
    });
  } catch (DeviceError const& error) {
    if (error.code != static_cast<int>(Result::invalid_value)) throw;
    throw InvalidArgument(
        "descriptor", fmt::format("{}", descriptor),
        fmt::format("one of {} bytes of {}'s memory or more ({})", bytes, gpu_.device_id, error.what()));
  }
}

void CudaExporter::release(DeviceMemory memory) noexcept {
  Piece piece;
  {
    std::lock_guard const lock{mutex_};
    auto const found = pieces_.find(memory.object);
    if (found == pieces_.end()) return;
    piece = found->second;
    pieces_.erase(found);
  }
  take_apart(piece);
}

template <class Take>
DeviceMemory CudaExporter::put_together(std::size_t bytes, Take const& take) {
  if (driver_gone()) throw UnsupportedOperation("memory for other processes", gpu_.device_id, process_end_reason);
  if (bytes == 0) throw InvalidArgument("bytes", "0", "at least 1");
  CurrentContext const current{gpu_};
  // Far beyond any GPU, and near where the sum would wrap.
  if (bytes > SIZE_MAX / 2) refuse_memory(gpu_, bytes, "cuMemCreate");
  Piece piece;
  piece.bytes = (bytes + page_bytes_ - 1) / page_bytes_ * page_bytes_;
  try {
    owner_.take_for_pages(piece.bytes);
    piece.counted = true;
    take(piece);
    map(piece);
    std::lock_guard const lock{mutex_};
    pieces_.emplace(piece.reserved, piece);
  } catch (...) {
    take_apart(piece);
    throw;
  }
  return {static_cast<std::uintptr_t>(piece.reserved), 0, bytes};
}

void CudaExporter::map(Piece& piece) {
  auto const& driver = gpu_.driver;
  constexpr auto call = "cuMemAddressReserve";
  auto const code = driver.cuMemAddressReserve(&piece.reserved, piece.bytes, page_bytes_, 0, 0);
  if (code == Result::out_of_memory) refuse_memory(gpu_, piece.bytes, call);
  health_.check(code, call);
  health_.check(driver.cuMemMap(piece.reserved, piece.bytes, 0, piece.handle, 0), "cuMemMap");
  piece.mapped = true;
  AccessDescription const access{.location = properties_.location, .flags = AccessFlags::read_write};
  health_.check(driver.cuMemSetAccess(piece.reserved, piece.bytes, &access, 1), "cuMemSetAccess");
}

void CudaExporter::take_apart(Piece const& piece) noexcept {
  if (!driver_gone()) {
    CurrentContext const current{gpu_, std::nothrow};
    health_.note(current.code());
    if (current.code() == Result::success) {
      auto const& driver = gpu_.driver;
      if (piece.mapped) health_.note(driver.cuMemUnmap(piece.reserved, piece.bytes));
      if (piece.reserved != 0) health_.note(driver.cuMemAddressFree(piece.reserved, piece.bytes));
      if (piece.handle != 0) health_.note(driver.cuMemRelease(piece.handle));
    }
  }
  if (piece.counted) owner_.give_back_from_pages(piece.bytes);
}

}  // namespace unimem::detail::cuda
