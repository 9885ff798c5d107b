#pragma once

#include <unimem/pool/allocation.hpp>

#include "core/stack.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace unimem::detail {

/// Spreads addresses, whose low bits are all alike, over all bits of a word.
[[nodiscard]] constexpr std::uint64_t address_hash(std::uintptr_t address) noexcept {
  return static_cast<std::uint64_t>(address) * 0x9E3779B97F4A7C15U;
}

/// Blocks by their address: open addressing with linear probing. An entry stands where its hash says, or as close
/// behind as there was room. Taking one out moves others into the gap, so that there are no graves to walk over, and
/// allocates nothing: giving memory back must not fail for want of memory.
///
/// Not thread-safe.
class AddressTable {
 public:
  struct Entry {
    std::uintptr_t address = 0;  ///< 0: a free place
    std::size_t bytes = 0;       ///< as asked for
    std::size_t alignment = 0;
    Allocation block;
    std::unique_ptr<Trail> trail{};  ///< null: not captured
  };

  /// What is remembered of one that was taken out.
  struct Taken {
    std::uintptr_t address = 0;  ///< 0: none has been yet
    std::unique_ptr<Trail> trail{};
  };

  /// How many of those are remembered.
  static constexpr std::size_t most_taken = 32;

  /// The address must not be in the table. Throws std::bad_alloc, with the block given back and nothing changed.
  void put(Entry entry) {
    if (2 * (count_ + 1) > places_.size()) grow();
    place(std::move(entry));
    ++count_;
  }

  /// Null if it is not there.
  [[nodiscard]] Entry* find(std::uintptr_t address) noexcept {
    if (places_.empty() || address == 0) return nullptr;
    auto at = home(address);
    while (places_[at].address != 0 && places_[at].address != address) at = next(at);
    return places_[at].address == address ? &places_[at] : nullptr;
  }

  /// Takes out what `find` has found.
  [[nodiscard]] Allocation take(Entry& found) noexcept {
    auto block = std::move(found.block);
    taken_[takes_++ % most_taken] = {found.address, std::move(found.trail)};
    auto gap = static_cast<std::size_t>(&found - places_.data());
    for (auto at = next(gap); places_[at].address != 0; at = next(at)) {
      // One whose home lies behind the gap, counting round the end, would not be found in front of it.
      auto const from_home = (at - home(places_[at].address)) & mask();
      auto const from_gap = (at - gap) & mask();
      if (from_home < from_gap) continue;
      places_[gap] = std::move(places_[at]);
      gap = at;
    }
    places_[gap] = Entry{};
    --count_;
    return block;
  }

  /// The last time that the address was taken out, if it is among the last that were: for reports. Else null.
  [[nodiscard]] Taken const* taken_lately(std::uintptr_t address) const noexcept {
    if (address == 0) return nullptr;
    for (auto at = takes_; at != 0 && takes_ - at < most_taken; --at) {
      auto const& taken = taken_[(at - 1) % most_taken];
      if (taken.address == address) return &taken;
    }
    return nullptr;
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  /// Throws std::logic_error unless every entry can be found, and they are as many as counted.
  void validate() {
    std::size_t seen = 0;
    for (auto const& entry : places_) {
      if (entry.address == 0) continue;
      ++seen;
      if (find(entry.address) != &entry) throw std::logic_error("AddressTable: an entry is not where it is looked for");
    }
    if (seen != count_) throw std::logic_error("AddressTable: the count is wrong");
    if (2 * count_ > places_.size()) throw std::logic_error("AddressTable: too full to look for what is not there");
  }

 private:
  [[nodiscard]] std::size_t mask() const noexcept { return places_.size() - 1; }
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return (at + 1) & mask(); }
  /// The topmost bits have chosen the shard, so they are the same for all of a table.
  [[nodiscard]] std::size_t home(std::uintptr_t address) const noexcept {
    return static_cast<std::size_t>(address_hash(address) >> 24) & mask();
  }

  void place(Entry entry) noexcept {
    auto at = home(entry.address);
    while (places_[at].address != 0) at = next(at);
    places_[at] = std::move(entry);
  }

  void grow() {
    constexpr std::size_t first_size = 32;
    std::vector<Entry> larger(places_.empty() ? first_size : 2 * places_.size());
    places_.swap(larger);
    for (auto& entry : larger) {
      if (entry.address != 0) place(std::move(entry));
    }
  }

  std::vector<Entry> places_;  ///< a power of two, at most half full
  std::size_t count_ = 0;
  std::array<Taken, most_taken> taken_{};  ///< one after the other, the oldest overwritten
  std::size_t takes_ = 0;
};

}  // namespace unimem::detail
