#include "pool/pool_counts.hpp"

#include <algorithm>

namespace unimem::detail {

void PoolCounts::count_in(Block const& block, std::size_t bytes, From from) noexcept {
  auto* const own = thread_cache_.own();
  auto const parked_elsewhere = thread_cache_.bytes_beside(own);
  note_peak(own, parked_elsewhere);
  auto& asked = counts_.size_classes[size_class(bytes)];
  auto& held = class_of(block);
  ++counts_.total_allocations;
  ++asked.allocations;
  if (from == From::device) {
    ++counts_.pool_misses;
  } else {
    ++counts_.pool_hits;
    ++asked.hits;
  }
  if (from == From::cache) held.pooled_bytes -= block.capacity();
  ++counts_.active_allocations;
  counts_.active_bytes += block.capacity();
  held.active_bytes += block.capacity();
  note_marks();
  note_peak(own, parked_elsewhere);
}

void PoolCounts::count_out(Block const& block) noexcept {
  auto& held = class_of(block);
  --counts_.active_allocations;
  counts_.active_bytes -= block.capacity();
  held.active_bytes -= block.capacity();
  held.pooled_bytes += block.capacity();
  note_marks();
}

void PoolCounts::uncount_hit(std::size_t bytes) noexcept {
  auto& asked = counts_.size_classes[size_class(bytes)];
  --counts_.total_allocations;
  --counts_.pool_hits;
  --asked.allocations;
  --asked.hits;
}

void PoolCounts::count_withheld(BlockList const& blocks) noexcept {
  auto* const own = thread_cache_.own();
  note_peak(own);
  for (auto const& block : blocks) {
    ++counts_.active_allocations;
    counts_.active_bytes += block.capacity();
    class_of(block).active_bytes += block.capacity();
  }
  note_marks();
  note_peak(own);
}

void PoolCounts::note_reserved(std::size_t bytes) noexcept {
  counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, bytes);
}

std::size_t PoolCounts::used_at_most(Magazines const* these, std::size_t parked_elsewhere) const noexcept {
  auto parked = static_cast<std::ptrdiff_t>(parked_elsewhere);
  if (these != nullptr) parked += these->fewest_bytes();
  auto const out = static_cast<std::ptrdiff_t>(counts_.active_bytes);
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(out - parked, 0, out));
}

void PoolCounts::note_peak(Magazines* these, std::size_t parked_elsewhere) noexcept {
  counts_.peak_active_bytes = std::max(counts_.peak_active_bytes, used_at_most(these, parked_elsewhere));
  if (these != nullptr) these->begin_watch();
}

void PoolCounts::add_hits(PoolStatistics& counts, Magazines const& magazines) noexcept {
  magazines.for_each_hits([&counts](std::size_t bytes, std::uint64_t hits) {
    auto& asked = counts.size_classes[size_class(bytes)];
    counts.total_allocations += hits;
    counts.pool_hits += hits;
    asked.allocations += hits;
    asked.hits += hits;
  });
}

bool PoolCounts::set_marks(std::size_t below, std::size_t above) noexcept {
  below_ = below;
  above_ = above;
  left_marks_.store(false, std::memory_order_relaxed);
  note_marks();
  return has_left_marks();
}

void PoolCounts::note_marks() noexcept {
  if (counts_.active_bytes < below_ || counts_.active_bytes >= above_) [[unlikely]]
    left_marks_.store(true, std::memory_order_relaxed);
}

}  // namespace unimem::detail
