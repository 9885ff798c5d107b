#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <random>
#include <vector>

// How often things of one size must be brought in where not all of them fit, by whom one lets go: what eviction is
// measured against, in tests and in the benchmark.

namespace unimem {

/// Which of some things is used, one use after the other.
using Uses = std::vector<std::size_t>;

[[nodiscard]] inline Uses loop(std::size_t count, std::size_t passes) {
  Uses uses;
  for (std::size_t i = 0; i < count * passes; ++i) uses.push_back(i % count);
  return uses;
}

/// The n-th most popular of them is used 1/n times as often as the first; who that is, `seed` says as well.
[[nodiscard]] inline Uses zipf(std::size_t count, std::size_t length, unsigned seed) {
  std::mt19937 random{seed};
  std::vector<double> weights;
  for (std::size_t i = 0; i < count; ++i) weights.push_back(1.0 / static_cast<double>(i + 1));
  std::discrete_distribution<std::size_t> draw(weights.begin(), weights.end());
  std::vector<std::size_t> names(count);
  std::iota(names.begin(), names.end(), 0);
  std::ranges::shuffle(names, random);
  Uses uses;
  for (std::size_t i = 0; i < length; ++i) uses.push_back(names[draw(random)]);
  return uses;
}

/// How often something had to be brought in, with room for `room` of them. `use(at)` is told of every use; the one with
/// the largest `wait(what, at)` goes.
template <class Use, class Wait>
[[nodiscard]] std::size_t loads(Uses const& uses, std::size_t room, Use const& use, Wait const& wait) {
  std::vector<std::size_t> inside;
  std::size_t brought = 0;
  for (std::size_t at = 0; at < uses.size(); ++at) {
    use(at);
    if (std::ranges::find(inside, uses[at]) != inside.end()) continue;
    ++brought;
    if (inside.size() == room) {
      inside.erase(std::ranges::max_element(inside, {}, [&](std::size_t what) { return wait(what, at); }));
    }
    inside.push_back(uses[at]);
  }
  return brought;
}

/// If the future were known: the one that is used last goes (Belady).
[[nodiscard]] inline std::size_t optimal_loads(Uses const& uses, std::size_t room) {
  std::vector<std::size_t> next(uses.size());
  std::map<std::size_t, std::size_t> seen;
  for (std::size_t at = uses.size(); at-- > 0;) {
    next[at] = seen.contains(uses[at]) ? seen[uses[at]] : 2 * uses.size();
    seen[uses[at]] = at;
  }
  std::map<std::size_t, std::size_t> coming;
  return loads(
      uses, room, [&](std::size_t at) { coming[uses[at]] = next[at]; },
      [&](std::size_t what, std::size_t) { return static_cast<double>(coming[what]); });
}

/// If the one that was used first goes.
[[nodiscard]] inline std::size_t least_recent_loads(Uses const& uses, std::size_t room) {
  std::map<std::size_t, std::size_t> last;
  return loads(
      uses, room, [&](std::size_t at) { last[uses[at]] = at; },
      [&](std::size_t what, std::size_t at) { return static_cast<double>(at - last[what]); });
}

}  // namespace unimem
