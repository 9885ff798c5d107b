#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "core/poison.hpp"
#include "core/system_page.hpp"
#include "device/host_memory.hpp"
#include "device/host_pages.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// Above this size the kernel can move whole page tables, if both addresses are equally far from a multiple of it.
constexpr std::size_t table_bytes = std::size_t{2} << 20;

void* pointer(std::uintptr_t address) noexcept {
  return reinterpret_cast<void*>(address);
}

/// Takes away all access and all memory in one step, keeping the addresses.
bool cover(std::uintptr_t base, std::size_t bytes) noexcept {
  return mmap(pointer(base), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

bool move_mapping(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) noexcept {
  return mremap(pointer(from), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, pointer(to)) !=
         MAP_FAILED;
}

[[noreturn]] void refuse(char const* call, std::size_t bytes) {
  OutOfMemory::Facts facts;
  facts.where = "host address space";
  facts.requested = bytes;
  facts.reason = fmt::format("{}: {}", call, std::strerror(errno));
  throw OutOfMemory(std::move(facts));
}

/// For calls that must not throw: a mistake of the caller's is said aloud and changes nothing.
void complain(std::string_view call, std::string_view mistake) noexcept {
  log(LogLevel::error, fmt::format("{}: {}; ignored", call, mistake));
  assert(false && "pages misused");
}

std::byte* addresses_for(std::size_t bytes, std::size_t page, std::size_t skew, int protection) noexcept {
  return map_addresses(bytes, bytes >= table_bytes ? table_bytes : page, skew, protection);
}

}  // namespace

bool HostPages::supported() noexcept {
  static bool const works = [] {
    auto const size = system_page_bytes();
    auto* const from = map_addresses(size, size, 0, PROT_READ | PROT_WRITE);
    auto* const to = map_addresses(size, size, 0, PROT_NONE);
    bool moved = false;
    if (from != nullptr && to != nullptr) {
      *from = std::byte{1};
      moved = move_mapping(reinterpret_cast<std::uintptr_t>(from), reinterpret_cast<std::uintptr_t>(to), size) &&
              *to == std::byte{1};
    }
    if (from != nullptr) munmap(from, size);
    if (to != nullptr) munmap(to, size);
    return moved;
  }();
  return works;
}

template <class Reservations>
auto HostPages::reservation_of(Reservations& all, std::uintptr_t address) {
  auto const after = all.upper_bound(address);
  if (after == all.begin()) return all.end();
  auto const found = std::prev(after);
  return address - found->first < found->second.bytes ? found : all.end();
}

AddressRange HostPages::reserve(std::size_t bytes, bool undumped) {
  made_.require("reserving addresses for pages");
  check_size(bytes);
  auto* const base = addresses_for(bytes, page_bytes(), 0, PROT_NONE);
  if (base == nullptr) refuse("mmap", bytes);
  AddressRange const range{reinterpret_cast<std::uintptr_t>(base), bytes};
  auto const pages = bytes / page_bytes();
  try {
    Reservation reservation{bytes, undumped, PageSet{pages}, PageSet{pages}};
    std::lock_guard const lock{mutex_};
    reservations_.emplace(range.base, std::move(reservation));
  } catch (...) {
    munmap(base, bytes);
    throw;
  }
  return range;
}

void HostPages::give_up(AddressRange range) noexcept {
  std::lock_guard const lock{mutex_};
  auto const found = reservations_.find(range.base);
  if (found == reservations_.end() || found->second.bytes != range.bytes) {
    return complain("give_up", "not a reservation");
  }
  auto const& open = found->second.open;
  auto const& present = found->second.present;
  if (!present.has_none(0, present.size())) return complain("give_up", "pages are still mapped there");
  // The addresses may be used now, whichever owner had hidden them. What was never open was not.
  for (std::size_t page = 0; (page = open.next_in(page, open.size())) != open.size();) {
    auto const end = open.next_out(page, open.size());
    unpoison(pointer(range.base + page * page_bytes()), (end - page) * page_bytes());
    page = end;
  }
  reservations_.erase(found);
  forget(range.base, range.bytes);
  munmap(pointer(range.base), range.bytes);
}

Pages HostPages::create_pages(std::size_t bytes) {
  made_.require("creating pages");
  check_size(bytes);
  owner_.take_for_pages(bytes);
  auto* const base = addresses_for(bytes, page_bytes(), 0, PROT_READ | PROT_WRITE);
  if (base == nullptr) {
    owner_.give_back_from_pages(bytes);
    refuse("mmap", bytes);
  }
  if (bytes >= table_bytes) madvise(base, bytes, MADV_HUGEPAGE);
  auto const handle = reinterpret_cast<std::uintptr_t>(base);
  std::lock_guard const lock{mutex_};
  pieces_.emplace(handle, bytes);
  parked_.emplace(handle, bytes);
  owner_.pages_created(handle, bytes);
  return {handle, bytes};
}

void HostPages::free_pages(Pages pages) noexcept {
  {
    std::lock_guard const lock{mutex_};
    auto const found = parked_.find(pages.handle);
    if (found == parked_.end() || found->second != pages.bytes) return complain("free_pages", "no such pages");
    parked_.erase(found);
    forget(pages.handle, pages.bytes);
    owner_.pages_freed(pages.handle, pages.bytes);
    munmap(pointer(pages.handle), pages.bytes);
  }
  owner_.give_back_from_pages(pages.bytes);
}

void HostPages::map(AddressRange range, Pages pages) {
  check_size(range.bytes);
  std::lock_guard const lock{mutex_};
  auto const place = stretch(range);
  auto const found = parked_.find(pages.handle);
  if (found == parked_.end() || found->second != pages.bytes) {
    throw InvalidArgument("pages", fmt::format("{:#x}", pages.handle), "pages that are mapped nowhere");
  }
  if (pages.bytes != range.bytes) {
    throw InvalidArgument("pages", fmt::format("{} bytes", pages.bytes),
                          fmt::format("the range's {} bytes", range.bytes));
  }
  check_vacant(place, range);
  if (place.in.undumped && !leave_out_of_dumps(pointer(pages.handle), pages.bytes)) refuse("madvise", pages.bytes);
  // What is left accessible there is replaced.
  split(range.base, range.bytes);
  forget(range.base, range.bytes);
  place.in.open.remove(place.first, place.count);
  move(pages.handle, range.base, range.bytes);
  place.in.open.add(place.first, place.count);
  place.in.present.add(place.first, place.count);
  parked_.erase(found);
  munmap(pointer(pages.handle), pages.bytes);
}

Pages HostPages::unmap(AddressRange range) {
  check_size(range.bytes);
  std::lock_guard const lock{mutex_};
  auto const place = stretch(range);
  check_mapped(place, range);
  // As far from a multiple of the page table's size as the range, so that whole tables can change places.
  auto const skew = range.bytes >= table_bytes ? range.base % table_bytes : 0;
  auto* const parking = addresses_for(range.bytes, page_bytes(), skew, PROT_NONE);
  if (parking == nullptr) refuse("mmap", range.bytes);
  auto const handle = reinterpret_cast<std::uintptr_t>(parking);
  try {
    parked_.emplace(handle, range.bytes);
    move(range.base, handle, range.bytes);
  } catch (...) {
    parked_.erase(handle);
    munmap(parking, range.bytes);
    throw;
  }
  place.in.open.remove(place.first, place.count);
  place.in.present.remove(place.first, place.count);
  return {handle, range.bytes};
}

void HostPages::populate(AddressRange range) {
  check_size(range.bytes);
  std::lock_guard const lock{mutex_};
  auto const place = stretch(range);
  check_vacant(place, range);
  owner_.take_for_pages(range.bytes);
  try {
    open(place);
    owner_.pages_created(range.base, range.bytes);
  } catch (...) {
    owner_.give_back_from_pages(range.bytes);
    throw;
  }
  place.in.present.add(place.first, place.count);
}

void HostPages::discard(AddressRange range) {
  check_size(range.bytes);
  {
    std::lock_guard const lock{mutex_};
    auto const place = stretch(range);
    check_mapped(place, range);
    split(range.base, range.bytes);
    if (!cover(range.base, range.bytes)) refuse("mmap", range.bytes);
    unpoison(pointer(range.base), range.bytes);
    forget(range.base, range.bytes);
    place.in.open.remove(place.first, place.count);
    place.in.present.remove(place.first, place.count);
    owner_.pages_freed(range.base, range.bytes);
  }
  owner_.give_back_from_pages(range.bytes);
}

bool HostPages::shift(AddressRange from, AddressRange to) {
  check_size(from.bytes);
  std::lock_guard const lock{mutex_};
  auto const here = stretch(from), there = stretch(to);
  if (from.bytes != to.bytes) {
    throw InvalidArgument("to", fmt::format("{} bytes", to.bytes), fmt::format("{} bytes", from.bytes));
  }
  check_mapped(here, from);
  check_vacant(there, to);
  open(there);
  if (madvise(pointer(from.base), from.bytes, MADV_DONTNEED) != 0) refuse("madvise", from.bytes);
  owner_.pages_created(to.base, to.bytes);
  owner_.pages_freed(from.base, from.bytes);
  here.in.present.remove(here.first, here.count);
  there.in.present.add(there.first, there.count);
  return true;
}

bool HostPages::is_mapped(std::uintptr_t base, std::size_t bytes) const {
  std::lock_guard const lock{mutex_};
  auto const found = reservation_of(reservations_, base);
  if (found == reservations_.end() || bytes > found->second.bytes - (base - found->first)) return false;
  if (bytes == 0) return true;
  auto const first = (base - found->first) / page_bytes();
  return found->second.present.has_all(first, (base - found->first + bytes - 1) / page_bytes() + 1 - first);
}

void HostPages::check_size(std::size_t bytes) const {
  if (bytes == 0 || bytes % page_bytes() != 0) {
    throw InvalidArgument("bytes", fmt::format("{}", bytes), fmt::format("a positive multiple of {}", page_bytes()));
  }
}

HostPages::Stretch HostPages::stretch(AddressRange range) {
  auto const found = reservation_of(reservations_, range.base);
  if (found != reservations_.end()) {
    auto const offset = range.base - found->first;
    if (offset % page_bytes() == 0 && range.bytes <= found->second.bytes - offset) {
      return {found->first, found->second, offset / page_bytes(), range.bytes / page_bytes()};
    }
  }
  throw InvalidArgument("range", fmt::format("{:#x} of {} bytes", range.base, range.bytes),
                        fmt::format("whole pages of {} bytes within one reservation", page_bytes()));
}

void HostPages::check_mapped(Stretch const& stretch, AddressRange range) {
  if (stretch.in.present.has_all(stretch.first, stretch.count)) return;
  throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have pages behind all of them");
}

void HostPages::check_vacant(Stretch const& stretch, AddressRange range) {
  if (stretch.in.present.has_none(stretch.first, stretch.count)) return;
  throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have nothing mapped there");
}

void HostPages::split(std::uintptr_t base, std::size_t bytes) {
  for (auto const at : {base, base + bytes}) {
    auto const after = pieces_.lower_bound(at);
    if (after == pieces_.begin()) continue;
    auto const before = std::prev(after);
    auto const offset = at - before->first;
    if (offset >= before->second) continue;
    pieces_.emplace_hint(after, at, before->second - offset);
    before->second = offset;
  }
}

void HostPages::forget(std::uintptr_t base, std::size_t bytes) noexcept {
  pieces_.erase(pieces_.lower_bound(base), pieces_.lower_bound(base + bytes));
}

void HostPages::single_out(std::uintptr_t base, std::size_t bytes) {
  auto next = pieces_.lower_bound(base);
  for (auto at = base; at < base + bytes; ++next) {
    auto const until = next == pieces_.end() ? base + bytes : std::min(base + bytes, next->first);
    for (; at < until; at += page_bytes()) pieces_.emplace_hint(next, at, page_bytes());
    if (next == pieces_.end()) break;
    at = next->first + next->second;
  }
}

void HostPages::open(Stretch const& stretch) {
  auto const page = page_bytes();
  auto& open = stretch.in.open;
  auto const end = stretch.first + stretch.count;
  for (auto first = stretch.first; (first = open.next_out(first, end)) != end;) {
    // Accessible addresses cost nothing until they are touched, a call each time does.
    auto const ahead = std::min(open.size(), open.next_in(first, end) + opened_ahead / page);
    auto const limit = open.next_in(first, ahead);
    auto* const base = pointer(stretch.base + first * page);
    auto const size = (limit - first) * page;
    constexpr auto flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(base, size, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) refuse("mmap", size);
    if (size >= table_bytes) madvise(base, size, MADV_HUGEPAGE);
    if (stretch.in.undumped && !leave_out_of_dumps(base, size)) {
      auto const reason = errno;
      cover(stretch.base + first * page, size);
      errno = reason;
      refuse("madvise", size);
    }
    open.add(first, limit - first);
    first = std::min(limit, end);
  }
}

void HostPages::move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) {
  split(from, bytes);
  single_out(from, bytes);
  auto const first = pieces_.lower_bound(from), last = pieces_.lower_bound(from + bytes);
  std::vector<Pieces::node_type> moved;
  moved.reserve(static_cast<std::size_t>(std::distance(first, last)));
  for (auto piece = first; piece != last; ++piece) {
    if (move_mapping(piece->first, to + (piece->first - from), piece->second)) continue;
    auto const reason = errno;
    // Both places are still ours and the ways back are the ways that just worked.
    for (auto back = first; back != piece; ++back) move_mapping(to + (back->first - from), back->first, back->second);
    cover(to, bytes);
    errno = reason;
    refuse("mremap", bytes);
  }
  // The nodes travel: no allocation that could fail between here and there.
  for (auto piece = pieces_.lower_bound(from); piece != pieces_.end() && piece->first < from + bytes;) {
    auto node = pieces_.extract(piece++);
    node.key() = to + (node.key() - from);
    moved.push_back(std::move(node));
  }
  for (auto& node : moved) pieces_.insert(std::move(node));
  owner_.pages_moved(from, to, bytes);
  cover(from, bytes);
  unpoison(pointer(from), bytes);  // whatever the system has there when these addresses have been given up
}

}  // namespace unimem::detail
