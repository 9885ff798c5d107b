#include "device/cuda/cuda_pages.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "device/process_end.hpp"

#include <fmt/format.h>

#include <bit>
#include <iterator>
#include <utility>

namespace unimem::detail::cuda {
namespace {

/// The GPUs whose kernels and copies may reach a GPU's pages: itself, and those that have a way to it.
std::vector<AccessDescription> everybody_near(Driver const& driver, Device device) {
  std::vector<AccessDescription> result;
  int count = 0;
  static_cast<void>(driver.cuDeviceGetCount(&count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Device other = 0;
    int reaches = 0;
    if (driver.cuDeviceGet(&other, ordinal) != Result::success) continue;
    if (other != device && (driver.cuDeviceCanAccessPeer(&reaches, other, device) != Result::success || reaches == 0)) {
      continue;
    }
    result.push_back({.location = {LocationType::device, other}, .flags = AccessFlags::read_write});
  }
  return result;
}

}  // namespace

CudaPages::CudaPages(ContextRef const& gpu, Health& health, Device device, PageOwner& owner)
    : gpu_(gpu), health_(health), owner_(owner), access_(everybody_near(gpu.driver, device)) {
  properties_.location = {LocationType::device, device};
  health_.check(gpu_.driver.cuMemGetAllocationGranularity(&page_bytes_, &properties_, Granularity::recommended),
                "cuMemGetAllocationGranularity");
  page_bytes_ = std::bit_ceil(page_bytes_);
}

AddressRange CudaPages::reserve(std::size_t bytes) {
  check_size(bytes);
  CurrentContext const current{gpu_};
  DevicePointer base = 0;
  constexpr auto call = "cuMemAddressReserve";
  // Far beyond any address space, and near where a driver's own sums might wrap.
  auto const code =
      bytes > SIZE_MAX / 4 ? Result::out_of_memory : gpu_.driver.cuMemAddressReserve(&base, bytes, page_bytes_, 0, 0);
  if (code == Result::out_of_memory) refuse_memory(gpu_, bytes, call);
  health_.check(code, call);
  AddressRange const range{static_cast<std::uintptr_t>(base), bytes};
  std::lock_guard const lock{mutex_};
  reservations_.emplace(range.base, bytes);
  return range;
}

void CudaPages::give_up(AddressRange range) noexcept {
  std::lock_guard const lock{mutex_};
  auto const found = reservations_.find(range.base);
  if (found == reservations_.end() || found->second != range.bytes) return complain("give_up", "not a reservation");
  if (present(range) != 0) return complain("give_up", "pages are still mapped there");
  reservations_.erase(found);
  if (driver_gone()) return;
  CurrentContext const current{gpu_, std::nothrow};
  if (current.code() != Result::success) return health_.note(current.code());
  health_.note(gpu_.driver.cuMemAddressFree(range.base, range.bytes));
}

Pages CudaPages::create_pages(std::size_t bytes) {
  check_size(bytes);
  CurrentContext const current{gpu_};
  owner_.take_for_pages(bytes);
  auto pages = std::make_unique<Parked>();
  try {
    pages->reserve(bytes / page_bytes_);
    for (std::size_t done = 0; done < bytes; done += page_bytes_) {
      AllocationHandle handle = 0;
      auto const code = gpu_.driver.cuMemCreate(&handle, page_bytes_, &properties_, 0);
      if (code == Result::out_of_memory) refuse_memory(gpu_, bytes, "cuMemCreate");
      health_.check(code, "cuMemCreate");
      pages->push_back(handle);
    }
    auto const handle = reinterpret_cast<std::uintptr_t>(pages.get());
    std::lock_guard const lock{mutex_};
    parked_.emplace(handle, std::move(pages));
    return {handle, bytes};
  } catch (...) {
    if (pages) release(*pages);
    owner_.give_back_from_pages(bytes);
    throw;
  }
}

void CudaPages::free_pages(Pages pages) noexcept {
  std::unique_ptr<Parked> gone;
  {
    std::lock_guard const lock{mutex_};
    auto const found = parked_.find(pages.handle);
    if (found == parked_.end() || found->second->size() * page_bytes_ != pages.bytes) {
      return complain("free_pages", "no such pages");
    }
    gone = std::move(found->second);
    parked_.erase(found);
  }
  release(*gone);
  owner_.give_back_from_pages(pages.bytes);
}

void CudaPages::map(AddressRange range, Pages pages) {
  check_size(range.bytes);
  CurrentContext const current{gpu_};
  std::lock_guard const lock{mutex_};
  check_range(range);
  auto const found = parked_.find(pages.handle);
  if (found == parked_.end() || found->second->size() * page_bytes_ != pages.bytes) {
    throw InvalidArgument("pages", fmt::format("{:#x}", pages.handle), "pages that are mapped nowhere");
  }
  if (pages.bytes != range.bytes) {
    throw InvalidArgument("pages", fmt::format("{} bytes", pages.bytes),
                          fmt::format("the range's {} bytes", range.bytes));
  }
  if (present(range) != 0) {
    throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have nothing mapped there");
  }
  auto const& handles = *found->second;
  std::map<std::uintptr_t, AllocationHandle> mapped;
  try {
    for (std::size_t i = 0; i < handles.size(); ++i) {
      auto const at = range.base + i * page_bytes_;
      mapped.emplace(at, handles[i]);
      auto const code = gpu_.driver.cuMemMap(at, page_bytes_, 0, handles[i], 0);
      if (code != Result::success) mapped.erase(at);
      health_.check(code, "cuMemMap");
    }
    auto const code = gpu_.driver.cuMemSetAccess(range.base, range.bytes, access_.data(), access_.size());
    health_.check(code, "cuMemSetAccess");
  } catch (...) {
    if (!mapped.empty()) health_.note(gpu_.driver.cuMemUnmap(range.base, mapped.size() * page_bytes_));
    throw;
  }
  mapped_.merge(mapped);
  parked_.erase(found);
}

Pages CudaPages::unmap(AddressRange range) {
  check_size(range.bytes);
  CurrentContext const current{gpu_};
  std::lock_guard const lock{mutex_};
  check_range(range);
  if (present(range) * page_bytes_ != range.bytes) {
    throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have pages behind all of them");
  }
  auto pages = std::make_unique<Parked>();
  auto const first = mapped_.find(range.base), last = mapped_.lower_bound(range.base + range.bytes);
  for (auto page = first; page != last; ++page) pages->push_back(page->second);
  auto const handle = reinterpret_cast<std::uintptr_t>(pages.get());
  auto const entry = parked_.emplace(handle, std::move(pages)).first;
  auto const code = gpu_.driver.cuMemUnmap(range.base, range.bytes);
  if (code != Result::success) parked_.erase(entry);
  health_.check(code, "cuMemUnmap");
  mapped_.erase(first, last);
  return {handle, range.bytes};
}

void CudaPages::check_size(std::size_t bytes) const {
  if (bytes == 0 || bytes % page_bytes_ != 0) {
    throw InvalidArgument("bytes", fmt::format("{}", bytes), fmt::format("a positive multiple of {}", page_bytes_));
  }
}

void CudaPages::check_range(AddressRange range) const {
  auto const after = reservations_.upper_bound(range.base);
  if (after != reservations_.begin()) {
    auto const& [begin, size] = *std::prev(after);
    auto const offset = range.base - begin;
    if (offset % page_bytes_ == 0 && offset < size && range.bytes <= size - offset) return;
  }
  throw InvalidArgument("range", fmt::format("{:#x} of {} bytes", range.base, range.bytes),
                        fmt::format("whole pages of {} bytes within one reservation", page_bytes_));
}

std::size_t CudaPages::present(AddressRange range) const {
  return static_cast<std::size_t>(
      std::distance(mapped_.lower_bound(range.base), mapped_.lower_bound(range.base + range.bytes)));
}

void CudaPages::release(Parked const& pages) noexcept {
  if (driver_gone()) return;
  CurrentContext const current{gpu_, std::nothrow};
  if (current.code() != Result::success) return health_.note(current.code());
  for (auto const handle : pages) health_.note(gpu_.driver.cuMemRelease(handle));
}

void CudaPages::complain(char const* call, char const* problem) const noexcept {
  log(LogLevel::error, fmt::format("{}: {}: {}; ignored", gpu_.device_id, call, problem));
}

}  // namespace unimem::detail::cuda
