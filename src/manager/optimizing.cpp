#include <unimem/core/log.hpp>
#include <unimem/core/size.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "manager/manager_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

// How a manager acts on what it knows of the use of its memory.

namespace unimem {
namespace {

/// One kind of step on one device, for every resident, within a number of bytes.
class Round {
 public:
  Round(detail::Residents& residents, Device& device, OptimizationTerms terms, OptimizationReport& report)
      : residents_(residents), device_(device), terms_(std::move(terms)), report_(report) {}

  void run(Optimization what, std::size_t& left) {
    for (auto* const resident : residents_.all()) {
      terms_.most_bytes = left;
      try {
        note(residents_.optimize(*resident, device_, what, terms_), left);
      } catch (std::exception const& error) {
        log(LogLevel::info, fmt::format("optimize: a buffer on {} stays as it is: {}", device_.id(), error.what()));
      }
    }
  }

 private:
  void note(OptimizationStep step, std::size_t& left) {
    if (step.bytes == 0) return;
    report_.seconds_saved += step.seconds_saved;
    left -= std::min(left, step.bytes);  // what is deferred is locked soon, unasked
    if (!step.deferred) {
      auto& sum = step.what == Optimization::pin       ? report_.pinned_bytes
                  : step.what == Optimization::release ? report_.released_bytes
                                                       : report_.placed_bytes;
      sum += step.bytes;
    }
    report_.steps.push_back(step);
  }

  detail::Residents& residents_;
  Device& device_;
  OptimizationTerms terms_;
  OptimizationReport& report_;
};

}  // namespace

OptimizationReport MemoryManager::optimize(OptimizationLimits const& limits) {
  OptimizationReport report;
  auto pinned_left = limits.max_pinned_bytes;
  std::vector<Device*> devices;
  for (auto* const pool : state().all()) {
    if (pool->location() == Location::device && !pool->device().is_lost()) devices.push_back(&pool->device());
  }
  for (auto* const device : devices) {
    OptimizationTerms terms;
    terms.machine.to_device = links().to(*device);
    terms.machine.to_host = links().from(*device);
    terms.idle_wait = static_cast<double>(total_memory(*device));
    Round round(state().residents, *device, std::move(terms), report);
    round.run(Optimization::pin, pinned_left);
    auto unlimited = static_cast<std::size_t>(-1);
    round.run(Optimization::release, unlimited);
    report.trimmed_bytes += pool(*device, Location::device).trim();
    auto placed_left = std::min(limits.max_placed_bytes, available_memory(*device));
    round.run(Optimization::place, placed_left);
  }
  return report;
}

std::string_view to_string(Optimization what) noexcept {
  switch (what) {
    case Optimization::pin:
      return "pin";
    case Optimization::release:
      return "release";
    case Optimization::place:
      return "place";
  }
  return "no optimization";
}

std::string OptimizationReport::text() const {
  std::string text;
  for (auto const& step : steps) {
    auto const who = step.name.empty() ? fmt::format("buffer #{}", step.buffer)
                                       : fmt::format("'{}' (buffer #{})", step.name.view(), step.buffer);
    fmt::format_to(std::back_inserter(text), "{}: {} of {} on {}", to_string(step.what), format_size(step.bytes), who,
                   step.device->id());
    if (step.seconds_saved > 0) fmt::format_to(std::back_inserter(text), ", {:.3g} s", step.seconds_saved);
    text += step.deferred ? ", when its host memory is next taken\n" : "\n";
  }
  fmt::format_to(std::back_inserter(text),
                 "{} locked, {} released, {} of cached blocks given back, {} placed; {:.3g} s by the model\n",
                 format_size(pinned_bytes), format_size(released_bytes), format_size(trimmed_bytes),
                 format_size(placed_bytes), seconds_saved);
  return text;
}

}  // namespace unimem
