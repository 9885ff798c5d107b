#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

namespace unimem::detail {

/// Failures of work that have been taken back, and of which nobody has been told: each is told by the first access to
/// its bytes, with all others on the bytes of that access.
///
/// Not thread-safe.
class UntoldFailures {
 public:
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }

  /// Throws std::bad_alloc, with nothing changed.
  void add(ByteRanges const& bytes, std::exception_ptr const& failure) {
    // What needed failed work has failed with it.
    auto const same = std::ranges::find(all_, failure, &Failure::failure);
    if (same == all_.end()) {
      all_.push_back({bytes, failure});
    } else {
      auto all = same->bytes;
      all.add(bytes);
      same->bytes = std::move(all);
    }
  }

  /// The first on bytes of `range`, of which nothing is untold then; null if there is none. Throws std::bad_alloc, with
  /// nothing changed.
  [[nodiscard]] std::exception_ptr tell(ByteRange range) {
    std::exception_ptr first;
    std::vector<Failure> rest;
    for (auto const& [bytes, failure] : all_) {
      if (!first && bytes.intersects(range)) {
        first = failure;
        continue;
      }
      auto elsewhere = bytes;
      elsewhere.remove(range);
      if (!elsewhere.empty()) rest.push_back({std::move(elsewhere), failure});
    }
    all_ = std::move(rest);
    return first;
  }

 private:
  struct Failure {
    ByteRanges bytes;
    std::exception_ptr failure;
  };
  std::vector<Failure> all_;  ///< in the order of the work
};

}  // namespace unimem::detail
