#include "pool/extents.hpp"

#include <unimem/core/error.hpp>

#include "pool/near_exact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <utility>

namespace unimem::detail {
namespace {

/// What may be reserved beyond the most that was ever used before pages are moved: a twenty-eighth of it, and a
/// fourteenth where so many times as much has been moved already: it would go on, and some more memory halves it.
constexpr std::size_t slack_of(std::size_t used, std::uint64_t moved) noexcept {
  constexpr std::uint64_t too_often = 16;
  return moved / too_often > used ? used / 14 : used / 28;
}

Extents::Piece piece_of(Span& span) noexcept {
  return {{span.base, 0, span.bytes}, {&span, {}}};
}

Extents::Piece piece_of(SlabBlock block) noexcept {
  return {{block.object() + block.offset(), 0, block.bytes()}, {nullptr, block}};
}

}  // namespace

ExtentCounts PublishedCounts::read() const noexcept {
  for (;;) {
    // Acquire, all but the last: none of them is read before the one above it. A count that is newer than the number
    // brings the odd number with it (`publish`), which the last load then sees.
    auto const before = number_.load(std::memory_order_acquire);
    std::array<std::size_t, 4> seen{};
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = counts_[i].load(std::memory_order_acquire);
    if (before % 2 == 0 && number_.load(std::memory_order_relaxed) == before) {
      return {.reserved = seen[0], .peak_reserved = seen[1], .free = seen[2], .returnable = seen[3]};
    }
    std::this_thread::yield();
  }
}

void PublishedCounts::publish(ExtentCounts const& counts) noexcept {
  auto const peak = std::max(counts_[1].load(std::memory_order_relaxed), counts.peak_reserved);
  auto const number = number_.load(std::memory_order_relaxed);
  number_.store(number + 1, std::memory_order_relaxed);
  // Each is a release, so that a thread that sees one of them sees the odd number too.
  counts_[0].store(counts.reserved, std::memory_order_release);
  counts_[1].store(peak, std::memory_order_release);
  counts_[2].store(counts.free, std::memory_order_release);
  counts_[3].store(counts.returnable, std::memory_order_release);
  number_.store(number + 2, std::memory_order_release);
}

SlabMemory::Stretch SlabSpans::take(std::size_t) {
  auto& span = *std::exchange(next_, nullptr);
  return {span.base, span.bytes, &span};
}

void SlabSpans::give(Stretch stretch) noexcept {
  arena_.give(*static_cast<Span*>(stretch.note));
}

void SlabSpans::take_back() noexcept {
  if (next_ != nullptr) arena_.give(*std::exchange(next_, nullptr));
}

Extents::Extents(Device& device, Location location, PageSource& pages, std::size_t limit, bool undumped,
                 LimitShare* share)
    : device_(device),
      location_(location),
      alignment_(std::max<std::size_t>(device.info().alignment, smallest_block)),
      share_(share),
      objects_(device, location, nullptr, undumped, share),
      shared_pages_(share == nullptr ? std::nullopt : std::optional<SharedPages>{std::in_place, pages, *share}),
      arena_(share == nullptr ? pages : *shared_pages_, {.granule = alignment_, .undumped = undumped}),
      limits_(device, share, limit) {}

std::size_t Extents::capacity_for(std::size_t bytes) const noexcept {
  auto const capacity = block_capacity(bytes);
  return capacity > SIZE_MAX - alignment_ ? capacity : (capacity + alignment_ - 1) & ~(alignment_ - 1);
}

Extents::Piece Extents::try_take(std::size_t bytes) {
  Open const books{*this};
  return take_free(bytes);
}

std::optional<Extents::Piece> Extents::try_take_at_once(std::size_t bytes) {
  std::unique_lock lock{mutex_, std::try_to_lock};
  if (!lock.owns_lock()) return std::nullopt;
  Open const books{*this, std::move(lock)};
  return take_free(bytes);
}

Extents::Piece Extents::take_free(std::size_t bytes) {
  auto const capacity = capacity_for(bytes);
  if (!Slabs::serves(capacity)) {
    auto* const span = arena_.take(capacity);
    return span == nullptr ? Piece{} : hand_out(piece_of(*span), false);
  }
  if (!slabs_.has(capacity)) {
    slab_spans_.provide(arena_.take(Slabs::slab_bytes(capacity), 1, End::high));
    if (slab_spans_.is_empty()) return {};
  }
  return small_piece(capacity, false);
}

Extents::Piece Extents::try_take_better(Origin const& than) {
  Open const books{*this};
  if (than.span == nullptr) {
    auto const better = slabs_.take_instead_of(than.small);
    if (better.slab == nullptr) return {};
    return hand_out(piece_of(better), false);
  }
  auto* const span = arena_.take_instead_of(*than.span);
  return span == nullptr ? Piece{} : hand_out(piece_of(*span), false);
}

Extents::Piece Extents::obtain(std::size_t bytes, std::size_t peak) {
  Open const books{*this};
  auto const before = reserved_now();
  auto const capacity = capacity_for(bytes);
  bool const small = Slabs::serves(capacity);
  if (!small || !slabs_.has(capacity)) {
    auto const size = small ? Slabs::slab_bytes(capacity) : capacity;
    auto const end = small ? End::high : End::low;
    auto* const span = obtain_span(size, peak, end);
    if (span == nullptr) return alone(bytes);
    if (!small) return hand_out(piece_of(*span), reserved_now() > before);
    slab_spans_.provide(span);
  }
  return small_piece(capacity, reserved_now() > before);
}

Extents::Piece Extents::alone(std::size_t bytes) {
  auto const limit = limits_.beside_others(), kept = held();
  if (kept > limit || bytes > limit - kept) {
    auto where = fmt::format("{} {}", device_.id(), to_string(location_));
    if (limit < limits_.own()) share_->refuse(std::move(where), bytes);
    throw OutOfMemory(
        {.where = std::move(where), .requested = bytes, .limit = limit, .holders = {}, .reason = "limit reached"});
  }
  arena_.trim(0);
  auto const memory = objects_.take(bytes);
  alone_ += memory.bytes;
  return hand_out({memory, {}}, true);
}

void Extents::give_back(DeviceMemory memory, Origin origin) noexcept {
  if (origin.span != nullptr) {
    arena_.give(*origin.span);
  } else if (origin.small.slab != nullptr) {
    slabs_.give(origin.small);
  } else {
    objects_.give(memory);
    alone_ -= memory.bytes;
  }
}

std::size_t Extents::limit_to(std::size_t bytes) noexcept {
  if (held() > bytes) return held();
  arena_.trim(bytes - alone_);
  publish();
  if (reserved_now() <= bytes) limits_.set_max_bytes(bytes);
  return reserved_now();
}

std::size_t Extents::trim(std::size_t keep) noexcept {
  Open const books{*this};
  if (reserved_now() <= keep) return 0;
  return arena_.trim(keep > alone_ ? keep - alone_ : 0);
}

std::size_t Extents::compact(DefragmentationLimits const& limits) {
  Open const books{*this};
  return arena_.gather_free(limits.max_moved_bytes, limits.stop);
}

std::size_t Extents::idle() noexcept {
  std::lock_guard const lock{mutex_};
  return std::exchange(idle_, arena_.free_in_pages());
}

Extents::Counts Extents::counts() const noexcept {
  return published_.read();
}

void Extents::publish() noexcept {
  auto const reserved = reserved_now(), returnable = arena_.free_in_pages();
  auto const in_slabs = slabs_.reserved() - slabs_.used();
  idle_ = std::min(idle_, returnable);
  published_.publish({reserved, reserved, arena_.free() + in_slabs, returnable});
}

void Extents::validate(std::size_t used) const {
  arena_.validate();
  slabs_.validate();
  if (!slab_spans_.is_empty()) throw std::logic_error("Extents: a slab's memory is left over");
  if (arena_.used() < slabs_.reserved()) throw std::logic_error("Extents: slabs beyond the arena");
  if (auto const out = this->used(); out != used) {
    throw std::logic_error(fmt::format("Extents: {} bytes are out, {} are known", out, used));
  }
  auto const counts = this->counts();
  if (counts.reserved != reserved_now()) throw std::logic_error("Extents: what is reserved is told wrong");
  if (counts.free != arena_.free() + slabs_.reserved() - slabs_.used() || counts.returnable != arena_.free_in_pages()) {
    throw std::logic_error("Extents: what is free is told wrong");
  }
  if (counts.peak_reserved < counts.reserved) throw std::logic_error("Extents: the peak is below the present");
}

Extents::Piece Extents::small_piece(std::size_t capacity, bool fresh) {
  try {
    auto const block = slabs_.take(capacity);
    return hand_out(piece_of(block), fresh);
  } catch (...) {
    slab_spans_.take_back();
    throw;
  }
}

Extents::Piece Extents::hand_out(Piece piece, bool fresh) noexcept {
  auto const out = used();
  piece.fresh = fresh || out > peak_used_;
  peak_used_ = std::max(peak_used_, out);
  return piece;
}

Span* Extents::obtain_span(std::size_t bytes, std::size_t peak, End end) {
  auto const limit = limits_.beside_others();
  auto const allowed = limit > alone_ ? limit - alone_ : 0;  // for the arena
  auto const wanted = std::max(peak - std::min(peak, alone_), arena_.used() + arena_.rounded(bytes));
  auto const plenty = std::min(allowed, wanted + slack_of(wanted, arena_.counts().moved_bytes));
  auto const room = [&](std::size_t most) { return most > arena_.reserved() ? most - arena_.reserved() : 0; };
  auto const attempt = [&]() -> Span* {
    if (auto* const span = arena_.take(bytes, 1, end)) return span;
    auto const most_growth = arena_.rounded(bytes) + arena_.page_bytes();  // beside a free span it takes less
    if (most_growth >= bytes && most_growth <= room(plenty)) return arena_.grow(bytes, 1, end);
    if (auto* const span = arena_.gather(bytes, 1, room(plenty), end)) return span;
    return arena_.gather(bytes, 1, room(allowed), end);
  };
  try {
    return attempt();
  } catch (OutOfMemory const&) {
    // A driver that has no more may have it once it gets back what is free here.
    if (arena_.trim(0) == 0) throw;
    return attempt();
  }
}

}  // namespace unimem::detail
