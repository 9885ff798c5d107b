#include "manager/host_limit.hpp"

#include "device/current_task.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace unimem::detail {

HostLimit::HostLimit(std::size_t from_outside, std::function<void()> trimmed)
    : from_outside_(from_outside),
      trimmed_(std::move(trimmed)),
      whole_(std::make_shared<SharedLimit>("all of the host's memory", from_outside)) {
  for (std::size_t place = 0; place < places; ++place) {
    shares_[place] = std::make_shared<LimitShare>(
        whole_, [this, location = static_cast<Location>(place)](std::size_t wanted, bool may_wait) {
          return make_room(location, wanted, may_wait);
        });
  }
}

void HostLimit::add(MemoryPool& pool) noexcept {
  // Release: who finds it finds it made.
  pools_[static_cast<std::size_t>(pool.location())].store(&pool, std::memory_order_release);
}

std::vector<MemoryPool*> HostLimit::pools() const {
  std::vector<MemoryPool*> found;
  found.reserve(places);
  for (auto const& pool : pools_) {
    if (auto* const made = pool.load(std::memory_order_acquire)) found.push_back(made);
  }
  return found;
}

std::size_t HostLimit::in_use() const {
  std::size_t bytes = 0;
  for (auto* const pool : pools()) bytes += pool->bytes_in_use();
  return bytes;
}

bool HostLimit::make_room(Location location, std::size_t wanted, bool may_wait) {
  auto const limit = bytes();
  auto const* const asking = pool(location);
  std::size_t others = 0;
  for (auto* const pool : pools()) others += pool == asking ? 0 : pool->bytes_in_use();
  if (wanted > limit || others > limit - wanted) return false;
  auto const before = whole_->returns();
  for (auto* const pool : pools()) {
    if (pool != asking) give_way(*pool, may_wait);
  }
  if (whole_->returns() != before) trimmed_();
  return true;
}

void HostLimit::set(std::size_t bytes) {
  auto const wanted = std::min(bytes, from_outside_);
  for (;;) {
    auto const before = whole_->returns();
    if (whole_->set(wanted)) return;
    auto least = in_use();
    if (least <= wanted) {
      for (auto* const pool : pools()) give_way(*pool, CurrentTask::may_wait_for_any());
      if (whole_->returns() != before) continue;
      least = whole_->bytes() - whole_->left();
    }
    throw InvalidArgument("bytes", fmt::format("{}", bytes),
                          fmt::format("at least the {} bytes in use in {}", least, whole_->name()));
  }
}

void HostLimit::complete(OutOfMemory::Facts& facts, MemoryPool const& asked) const {
  facts.limit = bytes();
  for (auto const* const pool : pools()) {
    if (pool == &asked) continue;
    auto const counts = pool->statistics();
    facts.live += counts.active_bytes;
    facts.cached += counts.total_pooled_bytes;
    for (auto& holder : pool->holders(most_holders)) {
      auto const same = std::ranges::find(facts.holders, holder.name, &OutOfMemory::Holder::name);
      if (same == facts.holders.end()) {
        facts.holders.push_back(std::move(holder));
      } else {
        same->bytes += holder.bytes;
        same->count += holder.count;
      }
    }
  }
  std::ranges::stable_sort(facts.holders, std::ranges::greater{}, &OutOfMemory::Holder::bytes);
  facts.holders.resize(std::min(facts.holders.size(), most_holders));
}

}  // namespace unimem::detail
