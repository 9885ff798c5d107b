#pragma once

#include "process/segment.hpp"
#include "process/shared_ranges.hpp"

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <random>
#include <span>

// Memory that processes write and read by the rules, and in which any that does not shows.

namespace unimem::testing {

/// Cells that are written whole: every word of one tells the same write of it.
class SharedCells {
 public:
  static constexpr std::size_t cell = 64, count = 64, size = cell * count;
  using Ranges = detail::SharedRanges;
  using Holder = Ranges::Holder;

 private:
  detail::Segment contents_ = detail::Segment::make("cells", size);
  detail::Segment table_memory_ = detail::Segment::make("table", Ranges::bytes());

 public:
  Ranges table;

  SharedCells() : table(Ranges::make({table_memory_.data(), table_memory_.size()}, size, "cells")) {
    for (std::size_t i = 0; i < count; ++i) write(i, i);
  }

  /// Of a process, since it was forked.
  struct Counts {
    std::atomic<std::uint64_t> steps;
  };
  static constexpr std::size_t most_processes = 8;
  [[nodiscard]] Counts& counts(std::size_t process) const { return counts_[process]; }

  /// Reads or writes at random. False: what it read was not whole, or changed under it. Where another process is in
  /// the way, it waits a moment, and if it `forgets`, has those leave that are dead.
  [[nodiscard]] bool step(Holder self, std::mt19937& random, bool forgets) {
    auto const begin = random() % count, cells = random() % 16 == 0 ? count : 1 + random() % 4;
    ByteRange const range{begin * cell, std::min(begin + cells, count) * cell};
    bool const writes = random() % 2 == 0;
    auto const seen = table.change_count();
    if (writes ? table.begin_write(self, range) : table.begin_read(self, range)) {
      if (forgets) static_cast<void>(table.forget_dead());
      table.wait_for_change(seen, std::chrono::milliseconds(1));
      return true;
    }
    if (writes) return write_some(self, range, random), true;
    bool const whole = is_whole(self, range);
    table.end_read(self, range);
    return whole;
  }

  /// Whether all that is not lost is. The caller has a claim on it.
  [[nodiscard]] bool is_whole(Holder self, ByteRange range) const {
    auto const lost = table.changes(self, 0).lost;
    std::array<std::uint64_t, count> found{};
    for (int twice = 0; twice < 2; ++twice) {
      for (auto at = range.begin; at < range.end; at += cell) {
        if (lost.contains({at, at + cell})) continue;
        auto const words = words_of(at / cell);
        auto const first = words[0].load(std::memory_order_relaxed);
        if (twice == 1 && first != found[at / cell]) return false;
        found[at / cell] = first;
        for (std::size_t i = 0; i < words.size(); ++i) {
          if (words[i].load(std::memory_order_relaxed) != first + i) return false;
        }
      }
    }
    return true;
  }

 private:
  using Word = std::atomic<std::uint64_t>;
  [[nodiscard]] std::span<Word> words_of(std::size_t index) const {
    return {reinterpret_cast<Word*>(contents_.data() + index * cell), cell / sizeof(Word)};
  }
  void write(std::size_t index, std::uint64_t value) const {
    auto const words = words_of(index);
    for (std::size_t i = 0; i < words.size(); ++i) words[i].store(value + i, std::memory_order_relaxed);
  }
  void write_some(Holder self, ByteRange range, std::mt19937& random) {
    using Outcome = Ranges::Outcome;
    auto const chance = random() % 8;
    if (chance == 0) return table.end_write(self, range, Outcome::untouched);
    auto const value = (std::uint64_t{self} << 40U) + (std::uint64_t{random()} << 4U);
    for (auto at = range.begin; at < range.end; at += cell) write(at / cell, value);
    if (chance > 1) return table.end_write(self, range);
    words_of(range.begin / cell)[3].store(~value, std::memory_order_relaxed);  // in the middle of it
    table.end_write(self, range, Outcome::lost);
  }

  detail::Segment counts_memory_ = detail::Segment::make("counts", most_processes * sizeof(Counts));
  Counts* counts_ = new (counts_memory_.data()) Counts[most_processes];
};

/// What a forked child does: takes part, and reads and writes until it is killed; it leaves at times, and joins again.
[[noreturn]] inline void work_until_killed(SharedCells& cells, std::size_t process, unsigned seed, bool forgets) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    auto const self = detail::SharedRanges::this_process();
    auto holder = cells.table.join(self).value();
    std::mt19937 random{seed};
    while (cells.step(holder, random, forgets)) {
      cells.counts(process).steps.fetch_add(1);
      if (random() % 32 != 0) continue;
      cells.table.leave(holder);
      holder = cells.table.join(self).value();
    }
    std::fprintf(stderr, "with seed %u: what was read was not whole\n", seed);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "with seed %u: %s\n", seed, error.what());
  }
  std::_Exit(1);
}

}  // namespace unimem::testing
