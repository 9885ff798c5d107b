#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "core/poison.hpp"
#include "device/host_memory.hpp"
#include "device/host_pages.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

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
    constexpr std::size_t size = 4096;
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

AddressRange HostPages::reserve(std::size_t bytes) {
  check_size(bytes);
  auto* const base = addresses_for(bytes, page_bytes(), 0, PROT_NONE);
  if (base == nullptr) refuse("mmap", bytes);
  AddressRange const range{reinterpret_cast<std::uintptr_t>(base), bytes};
  std::lock_guard const lock{mutex_};
  reservations_.emplace(range.base, bytes);
  return range;
}

void HostPages::give_up(AddressRange range) noexcept {
  std::lock_guard const lock{mutex_};
  auto const found = reservations_.find(range.base);
  if (found == reservations_.end() || found->second != range.bytes) return complain("give_up", "not a reservation");
  if (present(range.base, range.bytes) != 0) return complain("give_up", "pages are still mapped there");
  reservations_.erase(found);
  // The addresses are anybody's now, by whomever they were hidden. What was never open was not.
  for (auto open = idle_.lower_bound(range.base); open != idle_.end() && open->first < range.base + range.bytes; ++open)
    unpoison(pointer(open->first), open->second.bytes);
  forget(idle_, range.base, range.bytes);
  munmap(pointer(range.base), range.bytes);
}

Pages HostPages::create_pages(std::size_t bytes) {
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
  pieces_.emplace(handle, Piece{bytes, ++mappings_});
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
    forget(pieces_, pages.handle, pages.bytes);
    owner_.pages_freed(pages.handle, pages.bytes);
    munmap(pointer(pages.handle), pages.bytes);
  }
  owner_.give_back_from_pages(pages.bytes);
}

void HostPages::map(AddressRange range, Pages pages) {
  check_size(range.bytes);
  std::lock_guard const lock{mutex_};
  check_range(range);
  auto const found = parked_.find(pages.handle);
  if (found == parked_.end() || found->second != pages.bytes) {
    throw InvalidArgument("pages", fmt::format("{:#x}", pages.handle), "pages that are mapped nowhere");
  }
  if (pages.bytes != range.bytes) {
    throw InvalidArgument("pages", fmt::format("{} bytes", pages.bytes),
                          fmt::format("the range's {} bytes", range.bytes));
  }
  check_vacant(range);
  // What is left accessible there is replaced.
  split(idle_, range.base, range.bytes);
  forget(idle_, range.base, range.bytes);
  move(pages.handle, range.base, range.bytes);
  parked_.erase(found);
  munmap(pointer(pages.handle), pages.bytes);
}

Pages HostPages::unmap(AddressRange range) {
  check_size(range.bytes);
  std::lock_guard const lock{mutex_};
  check_range(range);
  check_mapped(range);
  // As far from a multiple of the page table's size as the range, so that whole tables can change places.
  auto const skew = range.bytes >= table_bytes ? range.base % table_bytes : 0;
  auto* const parking = addresses_for(range.bytes, page_bytes(), skew, PROT_NONE);
  if (parking == nullptr) refuse("mmap", range.bytes);
  auto const handle = reinterpret_cast<std::uintptr_t>(parking);
  try {
    move(range.base, handle, range.bytes);
    parked_.emplace(handle, range.bytes);
  } catch (...) {
    munmap(parking, range.bytes);
    throw;
  }
  return {handle, range.bytes};
}

void HostPages::populate(AddressRange range) {
  check_size(range.bytes);
  std::lock_guard const lock{mutex_};
  check_range(range);
  check_vacant(range);
  owner_.take_for_pages(range.bytes);
  try {
    open(range);
    split(idle_, range.base, range.bytes);
    owner_.pages_created(range.base, range.bytes);
  } catch (...) {
    owner_.give_back_from_pages(range.bytes);
    throw;
  }
  transfer(idle_, pieces_, range.base, range.bytes);
}

void HostPages::discard(AddressRange range) {
  check_size(range.bytes);
  {
    std::lock_guard const lock{mutex_};
    check_range(range);
    check_mapped(range);
    split(pieces_, range.base, range.bytes);
    if (!cover(range.base, range.bytes)) refuse("mmap", range.bytes);
    unpoison(pointer(range.base), range.bytes);
    forget(pieces_, range.base, range.bytes);
    owner_.pages_freed(range.base, range.bytes);
  }
  owner_.give_back_from_pages(range.bytes);
}

bool HostPages::shift(AddressRange from, AddressRange to) {
  check_size(from.bytes);
  std::lock_guard const lock{mutex_};
  check_range(from);
  check_range(to);
  if (from.bytes != to.bytes) {
    throw InvalidArgument("to", fmt::format("{} bytes", to.bytes), fmt::format("{} bytes", from.bytes));
  }
  check_mapped(from);
  check_vacant(to);
  open(to);
  split(idle_, to.base, to.bytes);
  split(pieces_, from.base, from.bytes);
  if (madvise(pointer(from.base), from.bytes, MADV_DONTNEED) != 0) refuse("madvise", from.bytes);
  owner_.pages_created(to.base, to.bytes);
  owner_.pages_freed(from.base, from.bytes);
  // Both leave before either arrives: neighbours would become one.
  Pieces left;
  transfer(pieces_, left, from.base, from.bytes);
  transfer(idle_, pieces_, to.base, to.bytes);
  transfer(left, idle_, from.base, from.bytes);
  return true;
}

bool HostPages::is_mapped(std::uintptr_t base, std::size_t bytes) const {
  std::lock_guard const lock{mutex_};
  auto const after = reservations_.upper_bound(base);
  if (after == reservations_.begin()) return false;
  auto const& [begin, size] = *std::prev(after);
  return base - begin < size && bytes <= size - (base - begin) && present(base, bytes) == bytes;
}

void HostPages::check_size(std::size_t bytes) const {
  if (bytes == 0 || bytes % page_bytes() != 0) {
    throw InvalidArgument("bytes", fmt::format("{}", bytes), fmt::format("a positive multiple of {}", page_bytes()));
  }
}

void HostPages::check_range(AddressRange range) const {
  auto const after = reservations_.upper_bound(range.base);
  if (after != reservations_.begin()) {
    auto const& [begin, size] = *std::prev(after);
    auto const offset = range.base - begin;
    if (offset % page_bytes() == 0 && offset < size && range.bytes <= size - offset) return;
  }
  throw InvalidArgument("range", fmt::format("{:#x} of {} bytes", range.base, range.bytes),
                        fmt::format("whole pages of {} bytes within one reservation", page_bytes()));
}

std::size_t HostPages::present(std::uintptr_t base, std::size_t bytes) const {
  auto const end = base + bytes;
  std::size_t sum = 0;
  auto piece = pieces_.upper_bound(base);
  if (piece != pieces_.begin()) --piece;
  for (; piece != pieces_.end() && piece->first < end; ++piece) {
    auto const first = std::max(base, piece->first);
    auto const last = std::min(end, piece->first + piece->second.bytes);
    if (first < last) sum += last - first;
  }
  return sum;
}

void HostPages::check_mapped(AddressRange range) const {
  if (present(range.base, range.bytes) == range.bytes) return;
  throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have pages behind all of them");
}

void HostPages::check_vacant(AddressRange range) const {
  if (present(range.base, range.bytes) == 0) return;
  throw InvalidArgument("range", fmt::format("{:#x}", range.base), "addresses that have nothing mapped there");
}

void HostPages::split(Pieces& pieces, std::uintptr_t base, std::size_t bytes) {
  for (auto const at : {base, base + bytes}) {
    auto const after = pieces.lower_bound(at);
    if (after == pieces.begin()) continue;
    auto const before = std::prev(after);
    auto const offset = at - before->first;
    if (offset >= before->second.bytes) continue;
    pieces.emplace_hint(after, at, Piece{before->second.bytes - offset, before->second.mapping});
    before->second.bytes = offset;
  }
}

void HostPages::forget(Pieces& pieces, std::uintptr_t base, std::size_t bytes) noexcept {
  pieces.erase(pieces.lower_bound(base), pieces.lower_bound(base + bytes));
}

void HostPages::transfer(Pieces& from, Pieces& to, std::uintptr_t base, std::size_t bytes) noexcept {
  auto const unite = [&to](Pieces::iterator left) {
    auto const right = std::next(left);
    if (right == to.end() || left->first + left->second.bytes != right->first) return;
    if (left->second.mapping != right->second.mapping) return;
    left->second.bytes += right->second.bytes;
    to.erase(right);
  };
  // The nodes travel: nothing is allocated.
  for (auto piece = from.lower_bound(base); piece != from.end() && piece->first < base + bytes;) {
    auto const placed = to.insert(from.extract(piece++)).position;
    unite(placed);
    if (placed != to.begin()) unite(std::prev(placed));
  }
}

void HostPages::single_out(std::uintptr_t base, std::size_t bytes) {
  for (auto piece = pieces_.lower_bound(base); piece != pieces_.end() && piece->first < base + bytes; ++piece) {
    if (piece->second.mapping != 0) continue;
    if (piece->second.bytes > page_bytes()) {
      pieces_.emplace_hint(std::next(piece), piece->first + page_bytes(), Piece{piece->second.bytes - page_bytes(), 0});
    }
    piece->second = {page_bytes(), ++mappings_};
  }
}

void HostPages::open(AddressRange range) {
  auto const end = range.base + range.bytes;
  auto next = idle_.upper_bound(range.base);
  if (next != idle_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > range.base) --next;
  for (auto at = range.base; at < end; ++next) {
    auto const until = next == idle_.end() ? end : std::min(end, next->first);
    if (at < until) open_gap(at, until, next);
    if (next == idle_.end()) break;
    at = next->first + next->second.bytes;
  }
}

void HostPages::open_gap(std::uintptr_t at, std::uintptr_t until, Pieces::iterator next) {
  // Accessible addresses cost nothing until they are touched, a call each time does.
  auto const reservation = std::prev(reservations_.upper_bound(at));
  auto limit = std::min(reservation->first + reservation->second, until + opened_ahead);
  if (next != idle_.end()) limit = std::min(limit, next->first);
  if (auto const used = pieces_.lower_bound(until); used != pieces_.end()) limit = std::min(limit, used->first);
  auto const entry = idle_.emplace_hint(next, at, Piece{limit - at, 0});
  constexpr auto flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(pointer(at), limit - at, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
    auto const reason = errno;
    idle_.erase(entry);
    errno = reason;
    refuse("mmap", limit - at);
  }
  if (limit - at >= table_bytes) madvise(pointer(at), limit - at, MADV_HUGEPAGE);
}

void HostPages::move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) {
  split(pieces_, from, bytes);
  single_out(from, bytes);
  auto const first = pieces_.lower_bound(from), last = pieces_.lower_bound(from + bytes);
  for (auto piece = first; piece != last; ++piece) {
    if (move_mapping(piece->first, to + (piece->first - from), piece->second.bytes)) continue;
    auto const reason = errno;
    // Both places are still ours and the ways back are the ways that just worked.
    for (auto back = first; back != piece; ++back)
      move_mapping(to + (back->first - from), back->first, back->second.bytes);
    cover(to, bytes);
    errno = reason;
    refuse("mremap", bytes);
  }
  // The nodes travel: no allocation that could fail between here and there.
  std::vector<Pieces::node_type> moved;
  for (auto piece = pieces_.lower_bound(from); piece != pieces_.end() && piece->first < from + bytes;) {
    auto node = pieces_.extract(piece++);
    node.key() = to + (node.key() - from);
    node.mapped().mapping = ++mappings_;
    moved.push_back(std::move(node));
  }
  for (auto& node : moved) pieces_.insert(std::move(node));
  owner_.pages_moved(from, to, bytes);
  cover(from, bytes);
}

}  // namespace unimem::detail
