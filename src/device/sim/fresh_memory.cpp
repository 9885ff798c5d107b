#include "device/sim/fresh_memory.hpp"

#include <cstring>
#include <new>

namespace unimem::detail {
namespace {

constexpr std::uintptr_t granule_below(std::uintptr_t address) noexcept {
  return address & ~(FreshMemory::granule_bytes - 1);
}

constexpr std::uintptr_t granule_above(std::uintptr_t address) noexcept {
  return granule_below(address + FreshMemory::granule_bytes - 1);
}

}  // namespace

void FreshMemory::add(std::uintptr_t base, std::size_t bytes) {
  std::lock_guard const lock{mutex_};
  fresh_.add({base, base + bytes});
}

void FreshMemory::remove(std::uintptr_t base, std::size_t bytes) noexcept {
  std::lock_guard const lock{mutex_};
  ByteRange const gone{base, base + bytes};
  try {
    fresh_.remove(gone);
  } catch (std::bad_alloc const&) {
    // It would have made two ranges of one. So nothing is left of the shorter of the two: it counts as touched.
    auto const around = *fresh_.find(gone.begin);
    bool const before = gone.begin - around.begin < around.end - gone.end;
    ByteRange const side = before ? ByteRange{around.begin, gone.begin} : ByteRange{gone.end, around.end};
    fill(side);
    fresh_.remove(before ? ByteRange{side.begin, gone.end} : ByteRange{gone.begin, side.end});
  }
}

void FreshMemory::move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) {
  std::lock_guard const lock{mutex_};
  auto const part = fresh_part({from, from + bytes});
  fresh_.remove({from, from + bytes});
  for (auto const range : part.ranges()) fresh_.add({range.begin - from + to, range.end - from + to});
}

void FreshMemory::before_access(std::uintptr_t base, std::size_t bytes) {
  if (bytes == 0) return;
  std::lock_guard const lock{mutex_};
  write_poison({granule_below(base), granule_above(base + bytes)});
}

void FreshMemory::before_overwrite(std::uintptr_t base, std::size_t bytes) {
  if (bytes == 0) return;
  std::lock_guard const lock{mutex_};
  auto const first = granule_above(base), last = granule_below(base + bytes);
  if (first >= last) return write_poison({granule_below(base), granule_above(base + bytes)});
  write_poison({granule_below(base), first});
  fresh_.remove({first, last});
  write_poison({last, granule_above(base + bytes)});
}

ByteRanges FreshMemory::fresh_part(ByteRange range) const {
  ByteRanges part{range};
  for (auto const touched : fresh_.missing(range)) part.remove(touched);
  return part;
}

void FreshMemory::fill(ByteRange range) noexcept {
  std::memset(reinterpret_cast<void*>(range.begin), std::to_integer<int>(poison), range.size());
}

void FreshMemory::write_poison(ByteRange range) {
  if (!fresh_.intersects(range)) return;
  // The ends of granules may belong to a neighbour: as long as it is fresh too, there is no difference to be seen.
  auto const parts = fresh_part(range);
  for (auto const part : parts.ranges()) fill(part);
  fresh_.remove(range);
}

}  // namespace unimem::detail
