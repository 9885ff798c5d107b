#include "device/cuda/cuda_pages.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "device/process_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace unimem::detail::cuda {
namespace {

/// A piece is at most this fraction of the growth that it is made for, and at most so large: what is in use keeps no
/// more than one at each of its ends from being given back.
constexpr std::size_t pieces_of_a_growth = 32;
constexpr std::size_t largest_piece = std::size_t{32} << 20;

}  // namespace

CudaPages::CudaPages(ContextRef const& gpu, Health& health, Device device, PageOwner& owner)
    : gpu_(gpu), health_(health), owner_(owner) {
  properties_.location = {LocationType::device, device};
  health_.check(gpu_.driver.cuMemGetAllocationGranularity(&page_bytes_, &properties_, Granularity::recommended),
                "cuMemGetAllocationGranularity");
  page_bytes_ = std::bit_ceil(page_bytes_);
}

std::size_t CudaPages::piece_bytes(std::size_t bytes) const noexcept {
  return std::max(page_bytes_, std::bit_floor(std::min(bytes / pieces_of_a_growth, largest_piece)));
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
    auto const large = piece_bytes(bytes);
    pages->reserve(bytes / large + large / page_bytes_);
    for (std::size_t done = 0; done < bytes; done += pages->back().bytes) {
      Piece piece{0, bytes - done >= large ? large : page_bytes_};
      auto const code = gpu_.driver.cuMemCreate(&piece.handle, piece.bytes, &properties_, 0);
      if (code == Result::out_of_memory) refuse_memory(gpu_, bytes, "cuMemCreate");
      health_.check(code, "cuMemCreate");
      pages->push_back(piece);
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
    if (found == parked_.end() || bytes_of(*found->second) != pages.bytes) {
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
  if (found == parked_.end() || bytes_of(*found->second) != pages.bytes) {
    throw InvalidArgument("pages", fmt::format("{:#x}", pages.handle), "pages that are mapped nowhere");
  }
  if (pages.bytes != range.bytes) {
    throw InvalidArgument("pages", fmt::format("{} bytes", pages.bytes),
                          fmt::format("the range's {} bytes", range.bytes));
  }
  if (present(range) != 0) {
    throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have nothing mapped there");
  }
  std::map<std::uintptr_t, Piece> mapped;
  auto at = range.base;
  try {
    for (auto const& piece : *found->second) {
      mapped.emplace_hint(mapped.end(), at, piece);
      health_.check(gpu_.driver.cuMemMap(at, piece.bytes, 0, piece.handle, 0), "cuMemMap");
      at += piece.bytes;
    }
    health_.check(let(properties_.location.id, range), "cuMemSetAccess");
  } catch (...) {
    if (at != range.base) health_.note(gpu_.driver.cuMemUnmap(range.base, at - range.base));
    throw;
  }
  std::erase_if(peers_, [&](Device peer) { return !let_peer(peer, range); });
  mapped_.merge(mapped);
  parked_.erase(found);
}

Pages CudaPages::unmap(AddressRange range) {
  check_size(range.bytes);
  CurrentContext const current{gpu_};
  std::lock_guard const lock{mutex_};
  check_range(range);
  if (present(range) != range.bytes) {
    throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have pages behind all of them");
  }
  auto const first = mapped_.lower_bound(range.base), last = mapped_.lower_bound(range.base + range.bytes);
  if (first == last || first->first != range.base || end_of(*std::prev(last)) != range.base + range.bytes) {
    throw InvalidArgument("range", fmt::format("{:#x} of {} bytes", range.base, range.bytes),
                          "whole pieces, as they were created");
  }
  auto pages = std::make_unique<Parked>();
  for (auto piece = first; piece != last; ++piece) pages->push_back(piece->second);
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
  auto piece = mapped_.upper_bound(range.base);
  if (piece != mapped_.begin()) --piece;
  std::size_t sum = 0;
  for (; piece != mapped_.end() && piece->first < range.base + range.bytes; ++piece) {
    auto const begin = std::max(piece->first, range.base), end = std::min(end_of(*piece), range.base + range.bytes);
    if (begin < end) sum += end - begin;
  }
  return sum;
}

void CudaPages::admit(Device peer) {
  CurrentContext const current{gpu_};
  std::lock_guard const lock{mutex_};
  if (std::ranges::find(peers_, peer) != peers_.end()) return;
  for (auto piece = mapped_.begin(); piece != mapped_.end();) {  // neighbours of a reservation in one call
    auto const base = piece->first;
    auto end = end_of(*piece++);
    while (piece != mapped_.end() && piece->first == end && !reservations_.contains(end)) end = end_of(*piece++);
    if (!let_peer(peer, {base, end - base})) return;
  }
  peers_.push_back(peer);
}

Result CudaPages::let(Device device, AddressRange range) const noexcept {
  AccessDescription const access{.location = {LocationType::device, device}, .flags = AccessFlags::read_write};
  return gpu_.driver.cuMemSetAccess(range.base, range.bytes, &access, 1);
}

bool CudaPages::let_peer(Device peer, AddressRange range) const noexcept {
  auto const code = let(peer, range);
  if (code == Result::success) return true;
  // What is wrong with another GPU is nothing that this one, or a third, has to suffer from.
  log(LogLevel::warning, fmt::format("{}: GPU {} does not reach its pages: cuMemSetAccess: {}", gpu_.device_id, peer,
                                     code_name(gpu_.driver, code)));
  return false;
}

std::size_t CudaPages::bytes_of(Parked const& pieces) noexcept {
  std::size_t sum = 0;
  for (auto const& piece : pieces) sum += piece.bytes;
  return sum;
}

void CudaPages::release(Parked const& pages) noexcept {
  if (driver_gone()) return;
  CurrentContext const current{gpu_, std::nothrow};
  if (current.code() != Result::success) return health_.note(current.code());
  for (auto const& piece : pages) health_.note(gpu_.driver.cuMemRelease(piece.handle));
}

void CudaPages::complain(char const* call, char const* problem) const noexcept {
  log(LogLevel::error, fmt::format("{}: {}: {}; ignored", gpu_.device_id, call, problem));
}

}  // namespace unimem::detail::cuda
