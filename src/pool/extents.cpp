#include "pool/extents.hpp"

#include <unimem/core/error.hpp>

#include "pool/mutants.hpp"
#include "pool/near_exact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

/// What may be reserved beyond the most that was ever used before pages are moved: a twenty-fifth of it.
constexpr std::size_t slack_of(std::size_t used) noexcept {
  return used / 25;
}

}  // namespace

Extents::Extents(Device& device, Location location, PageSource& pages)
    : device_(device),
      location_(location),
      arena_(pages, {.granule = std::max<std::size_t>(device.info().alignment, smallest_block)}),
      slabs_(*this) {}

Extents::~Extents() = default;

std::size_t Extents::capacity_for(std::size_t bytes) const noexcept {
  auto const alignment = std::max<std::size_t>(device_.info().alignment, smallest_block);
  auto const capacity = block_capacity(bytes);
  return capacity > SIZE_MAX - alignment ? capacity : (capacity + alignment - 1) & ~(alignment - 1);
}

Extents::Piece Extents::try_take(std::size_t bytes) {
  std::lock_guard const lock{mutex_};
  auto const capacity = capacity_for(bytes);
  if (!Slabs::serves(capacity)) {
    auto* const span = arena_.take(capacity);
    return span == nullptr ? Piece{} : piece_of(*span, false);
  }
  if (!slabs_.has(capacity)) {
    for_slab_ = arena_.take(Slabs::slab_bytes(capacity), 1, End::high);
    if (for_slab_ == nullptr) return {};
  }
  return small_piece(capacity, false);
}

Extents::Piece Extents::obtain(std::size_t bytes, std::size_t limit, std::size_t peak) {
  std::lock_guard const lock{mutex_};
  auto const before = reserved_now();
  auto const capacity = capacity_for(bytes);
  bool const small = Slabs::serves(capacity);
  if (!small || !slabs_.has(capacity)) {
    auto const size = small ? Slabs::slab_bytes(capacity) : capacity;
    auto const end = small ? End::high : End::low;
    auto* span = obtain_span(size, limit, peak, end);
    // What slabs keep without need may be the page that is missing.
    if (span == nullptr && slabs_.trim() != 0) span = obtain_span(size, limit, peak, end);
    if (span == nullptr) return alone(bytes, limit);
    if (!small) return piece_of(*span, reserved_now() > before);
    for_slab_ = span;
  }
  return small_piece(capacity, reserved_now() > before);
}

Extents::Piece Extents::alone(std::size_t bytes, std::size_t limit) {
  auto const kept = reserved_now() - arena_.free_in_pages();
  if (kept > limit || bytes > limit - kept) {
    throw OutOfMemory({.where = fmt::format("{} {}", device_.id(), to_string(location_)),
                       .requested = bytes,
                       .limit = limit,
                       .holders = {},
                       .reason = "limit reached"});
  }
  arena_.trim(0);
  publish();
  auto const memory = device_.allocate(bytes, location_);
  if (!UNIMEM_MUTANT(allocations_miscounted)) alone_ += memory.bytes;
  return piece({memory, {}}, true);
}

void Extents::give_back(DeviceMemory memory, Origin origin) noexcept {
  bool const alone = !origin.in_pages();
  if (alone) device_.release(memory, location_);
  std::lock_guard const lock{mutex_};
  if (alone) {
    alone_ -= memory.bytes;
  } else if (origin.span != nullptr) {
    arena_.give(*origin.span);
  } else {
    slabs_.give(origin.small);
  }
  publish();
}

std::size_t Extents::held() noexcept {
  std::lock_guard const lock{mutex_};
  slabs_.trim();
  publish();
  return reserved_now() - arena_.free_in_pages();
}

std::size_t Extents::trim(std::size_t keep) noexcept {
  std::lock_guard const lock{mutex_};
  if (reserved_now() <= keep) return 0;
  slabs_.trim();
  auto const given = arena_.trim(keep > alone_ ? keep - alone_ : 0);
  publish();
  return given;
}

std::size_t Extents::compact() {
  std::lock_guard const lock{mutex_};
  slabs_.trim();
  auto const moved = arena_.gather_all();
  publish();
  return moved;
}

std::size_t Extents::idle() noexcept {
  std::lock_guard const lock{mutex_};
  return std::exchange(idle_, arena_.free_in_pages());
}

Extents::Counts Extents::counts() const noexcept {
  std::lock_guard const lock{counts_mutex_};
  return counts_;
}

std::size_t Extents::largest_free() const noexcept {
  std::lock_guard const lock{mutex_};
  return arena_.largest_free();
}

void Extents::publish() noexcept {
  auto const reserved = reserved_now(), returnable = arena_.free_in_pages();
  auto const free = arena_.free() + slabs_.reserved() - slabs_.used();
  idle_ = std::min(idle_, returnable);
  std::lock_guard const lock{counts_mutex_};
  counts_ = {reserved, std::max(counts_.peak_reserved, reserved), free, returnable};
}

void Extents::validate(std::size_t used) const {
  std::lock_guard const lock{mutex_};
  arena_.validate();
  slabs_.validate();
  if (for_slab_ != nullptr) throw std::logic_error("Extents: a slab's memory is left over");
  if (arena_.used() < slabs_.reserved()) throw std::logic_error("Extents: slabs beyond the arena");
  auto const out = used_now();
  if (out != used) throw std::logic_error(fmt::format("Extents: {} bytes are out, {} are known", out, used));
  auto const counts = this->counts();
  if (counts.reserved != reserved_now()) throw std::logic_error("Extents: what is reserved is told wrong");
  if (counts.peak_reserved < counts.reserved) throw std::logic_error("Extents: the peak is below the present");
}

Extents::Stretch Extents::take(std::size_t) {
  auto& span = *std::exchange(for_slab_, nullptr);
  return {span.base, span.bytes, &span};
}

void Extents::give(Stretch stretch) noexcept {
  arena_.give(*static_cast<Span*>(stretch.note));
}

Extents::Piece Extents::small_piece(std::size_t capacity, bool fresh) {
  try {
    auto const block = slabs_.take(capacity);
    return piece({{block.object() + block.offset(), 0, block.bytes()}, {nullptr, block}}, fresh);
  } catch (...) {
    if (for_slab_ != nullptr) arena_.give(*std::exchange(for_slab_, nullptr));
    publish();
    throw;
  }
}

Extents::Piece Extents::piece_of(Span& span, bool fresh) noexcept {
  return piece({{span.base, 0, span.bytes}, {&span, {}}}, fresh);
}

Extents::Piece Extents::piece(Piece piece, bool fresh) noexcept {
  auto const out = used_now();
  piece.fresh = fresh || (out > peak_used_ && !UNIMEM_MUTANT(hits_miscounted));
  peak_used_ = std::max(peak_used_, out);
  publish();
  return piece;
}

Span* Extents::obtain_span(std::size_t bytes, std::size_t limit, std::size_t peak, End end) {
  auto const allowed = UNIMEM_MUTANT(limit_of_pages_ignored) ? SIZE_MAX / 2
                       : limit > alone_                      ? limit - alone_
                                                             : 0;  // for the arena
  auto const wanted = std::max(peak - std::min(peak, alone_), arena_.used() + arena_.rounded(bytes));
  auto const plenty = std::min(allowed, wanted + slack_of(wanted));
  auto const room = [&](std::size_t most) { return most > arena_.reserved() ? most - arena_.reserved() : 0; };
  auto const attempt = [&]() -> Span* {
    if (auto* const span = arena_.take(bytes, 1, end)) return span;
    auto const most_growth = arena_.rounded(bytes) + arena_.page_bytes();  // beside a free span it takes less
    if (most_growth >= bytes && most_growth <= room(plenty)) return arena_.grow(bytes, 1, end);
    if (auto* const span = arena_.gather(bytes, 1, room(plenty), end)) return span;
    return arena_.gather(bytes, 1, room(allowed), end);
  };
  Span* span = nullptr;
  try {
    span = attempt();
  } catch (OutOfMemory const&) {
    // A driver that has no more may have it once it gets back what is free here.
    slabs_.trim();
    bool const more = arena_.trim(0) != 0;
    publish();
    if (!more) throw;
    span = attempt();
  }
  publish();
  return span;
}

}  // namespace unimem::detail
