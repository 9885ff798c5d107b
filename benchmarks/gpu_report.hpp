#pragma once

#include "spread.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace unimem::bench {

/// What a benchmark found, one line each: printed at once, and kept for whoever reads it from a file. Where the figures
/// mean nothing, no line is held against its target.
class Report {
 public:
  explicit Report(bool judges) : judges_(judges) {}

  /// How many times as fast as what it is measured against; more is better.
  void at_least(std::string what, std::vector<double> const& ratios, double target, std::string const& beside = {}) {
    auto const found = spread(ratios);
    add(std::move(what), spelled(found, "", beside) + fmt::format(", at least {:g} wanted", target),
        found.median >= target);
  }
  /// What it costs; less is better.
  void at_most(std::string what, std::vector<double> const& values, char const* unit, double target,
               std::string const& beside = {}) {
    auto const found = spread(values);
    add(std::move(what), spelled(found, unit, beside) + fmt::format(", at most {:g} wanted", target),
        found.median <= target);
  }
  /// What is only stated.
  void fact(std::string what, std::string result) { keep(std::move(what), std::move(result), "stated"); }
  /// What could not be measured here.
  void skipped(std::string what, std::string why) { keep(std::move(what), std::move(why), "skipped"); }

  /// Writes all lines as one JSON object. Throws std::runtime_error.
  void write(std::string const& path) const {
    std::ofstream file(path);
    file << nlohmann::json{{"lines", lines_}}.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  }

 private:
  using Clock = std::chrono::steady_clock;

  static std::string spelled(Spread found, char const* unit, std::string const& beside) {
    return fmt::format("{:.3g}{} ({:.3g} to {:.3g}{})", found.median, unit, found.low, found.high,
                       beside.empty() ? "" : "; " + beside);
  }
  void add(std::string what, std::string result, bool met) {
    keep(std::move(what), std::move(result), !judges_ ? "not judged" : met ? "met" : "missed");
  }
  void keep(std::string what, std::string result, char const* verdict) {
    fmt::print("  {:<74} {}: {}\n", what, result, verdict);
    std::fflush(stdout);
    auto const now = Clock::now();
    lines_.push_back({{"what", std::move(what)},
                      {"result", std::move(result)},
                      {"verdict", verdict},
                      {"seconds", std::chrono::duration<double>(now - std::exchange(last_, now)).count()}});
  }

  bool judges_;
  Clock::time_point last_ = Clock::now();
  std::vector<nlohmann::json> lines_;
};

}  // namespace unimem::bench
