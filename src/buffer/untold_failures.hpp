#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <exception>
#include <utility>
#include <vector>

namespace unimem::detail {

/// Failures that came to be known with another one, which was told, and that touched other bytes: each is told by the
/// first access to those.
///
/// Not thread-safe.
class UntoldFailures {
 public:
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }

  /// Throws std::bad_alloc, with nothing changed.
  void add(ByteRanges touched, std::exception_ptr failure) {
    if (!touched.empty()) all_.push_back({std::move(touched), std::move(failure)});
  }

  /// The first that touched bytes of `range`, of which nothing is untold then; null if there is none. Throws
  /// std::bad_alloc, with nothing changed.
  [[nodiscard]] std::exception_ptr tell(ByteRange range) {
    std::exception_ptr first;
    std::vector<Failure> rest;
    for (auto const& [touched, failure] : all_) {
      if (!first && touched.intersects(range)) first = failure;
      auto elsewhere = touched;
      elsewhere.remove(range);
      if (!elsewhere.empty() && failure != first) rest.push_back({std::move(elsewhere), failure});
    }
    all_ = std::move(rest);
    return first;
  }

 private:
  struct Failure {
    ByteRanges touched;
    std::exception_ptr failure;
  };
  std::vector<Failure> all_;  ///< in the order of the work
};

}  // namespace unimem::detail
