#pragma once

#include "core/brief_lock.hpp"
#include "manager/usage_book.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

// What a book's files share of its inside: its lines, and each shard's part of them.

namespace unimem::detail {

inline constexpr std::size_t shard_count = 16;

[[nodiscard]] inline double seconds(std::int64_t nanoseconds) noexcept {
  return static_cast<double>(nanoseconds) * 1e-9;
}

[[nodiscard]] inline std::size_t hash_of(UsageKey const& key) noexcept {
  auto const device = reinterpret_cast<std::uintptr_t>(key.device);
  auto const mixed = std::hash<Name>{}(key.name) * 0x9E3779B97F4A7C15U + device * 0xC2B2AE3D27D4EB4FU +
                     static_cast<std::size_t>(key.location);
  return mixed ^ (mixed >> 29);
}

struct UsageBook::Place {
  Place(UsageKey const& key, std::size_t number) : device(key.device), location(key.location), index(number) {}
  Device const* device;
  Location location;
  std::size_t index;
  UsageGauge gauge{};
};

struct UsageBook::Line {
  Line(UsageKey const& of, std::size_t number, Place& at) : key(of), index(number), place(&at) {}
  UsageKey key;
  std::size_t index;
  Place* place;
  UsageGauge gauge{};
};

/// A shard's part of one line: what has been counted, but for the uses of those that live, which count themselves.
struct UsageSlot {
  UsageShard* shard;
  UsageBook::Line* line;
  std::int64_t* place_kept;
  std::int64_t kept = 0;
  std::int64_t longest = 0;
  std::int64_t alive = 0;
  UsageCounts counts{};
  UsageEntry* first = nullptr;
};

struct alignas(128) UsageShard {
  BriefLock lock;
  UsageBook* book = nullptr;
  UsageSlot* latest = nullptr;
  std::int64_t kept = 0;
  std::vector<std::unique_ptr<UsageSlot>> slots;
  std::vector<std::pair<UsageBook::Place*, std::unique_ptr<std::int64_t>>> places;
  /// By hash, open: its size is a power of two, at most half full.
  std::vector<UsageSlot*> table;

  [[nodiscard]] UsageSlot* find(UsageKey const& key) noexcept {
    if (latest != nullptr && latest->line->key == key) return latest;
    if (table.empty()) return nullptr;
    auto const mask = table.size() - 1;
    for (auto at = hash_of(key) & mask;; at = (at + 1) & mask) {
      if (table[at] == nullptr) return nullptr;
      if (table[at]->line->key == key) return latest = table[at];
    }
  }

  [[nodiscard]] UsageSlot& make(UsageBook::Line& line) {
    if (2 * (slots.size() + 1) > table.size()) {
      std::vector<UsageSlot*> larger(std::max<std::size_t>(16, 2 * table.size()));
      for (auto const& slot : slots) put(larger, *slot);
      table = std::move(larger);
    }
    auto place = std::ranges::find(places, line.place, [](auto const& one) { return one.first; });
    if (place == places.end()) {
      places.emplace_back(line.place, std::make_unique<std::int64_t>(0));
      place = places.end() - 1;
    }
    slots.reserve(slots.size() + 1);
    slots.push_back(std::make_unique<UsageSlot>(UsageSlot{this, &line, place->second.get()}));
    put(table, *slots.back());
    return *(latest = slots.back().get());
  }

 private:
  static void put(std::vector<UsageSlot*>& into, UsageSlot& slot) noexcept {
    auto const mask = into.size() - 1;
    auto at = hash_of(slot.line->key) & mask;
    while (into[at] != nullptr) at = (at + 1) & mask;
    into[at] = &slot;
  }
};

/// Holds all shards, taken in their order.
class UsageBook::AllShards {
 public:
  explicit AllShards(UsageBook const& book) noexcept : shards_(book.shards_.get()) {
    for (std::size_t i = 0; i < shard_count; ++i) shards_[i].lock.lock();
  }
  AllShards(AllShards const&) = delete;
  AllShards& operator=(AllShards const&) = delete;
  ~AllShards() {
    for (std::size_t i = 0; i < shard_count; ++i) shards_[i].lock.unlock();
  }

  template <class Look>
  void for_each_slot(Look const& look) const {
    for (std::size_t i = 0; i < shard_count; ++i) {
      for (auto const& slot : shards_[i].slots) look(*slot);
    }
  }

 private:
  UsageShard* shards_;
};

}  // namespace unimem::detail
