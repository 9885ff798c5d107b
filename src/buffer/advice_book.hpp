#pragma once

#include <unimem/buffer/advised_range.hpp>

#include <vector>

namespace unimem::detail {

/// Which advice holds for which bytes. A buffer keeps one of what its user said, and every storage one of what its
/// driver was told: storage comes and goes, the advice stays, and blocks go back to their pools as they came.
///
/// A byte has one preferred location at most: where another was named before, it no longer is.
class AdviceBook {
 public:
  void give(AdvisedRange const& advised);
  void take_back(AdvisedRange const& advised);

  /// The buffer has another size: what held for all of it still does.
  void resize(std::size_t from, std::size_t to);
  void clear() noexcept { entries_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  /// By advice and place in the order in which they were first given, then by offset.
  [[nodiscard]] std::vector<AdvisedRange> list() const;

  /// What holds here and not there.
  [[nodiscard]] std::vector<AdvisedRange> beyond(AdviceBook const& other) const;

 private:
  struct Entry {
    Advice advice = Advice::read_mostly;
    Device* place = nullptr;
    ByteRanges ranges;
  };

  [[nodiscard]] ByteRanges const* find(Advice advice, Device const* place) const noexcept;

  std::vector<Entry> entries_;  ///< none without ranges
};

}  // namespace unimem::detail
