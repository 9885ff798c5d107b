#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include "fuzz/target.hpp"

#include <cmath>
#include <optional>
#include <utility>

namespace unimem::fuzz {
namespace {

/// As text that says everything. Times and rates that are no whole numbers are left as they are: nothing where there
/// are such.
std::optional<std::string> written(SimOptions const& options) {
  std::string text = fmt::format("memory={},peer={:d},heedless={:d},batch={:d}", options.memory_bytes, options.peer,
                                 options.heedless, options.batches);
  for (auto const& [name, rate] : {std::pair{"h2d", options.upload_bytes_per_second},
                                   {"d2h", options.download_bytes_per_second},
                                   {"d2d", options.copy_bytes_per_second},
                                   {"peer_rate", options.peer_bytes_per_second}}) {
    if (rate == 0) continue;
    if (rate != std::floor(rate) || rate > 1e15) return std::nullopt;
    text += fmt::format(",{}={:.0f}B/s", name, rate);
  }
  for (auto const& [name, number] : {std::pair{"fail_alloc", options.fail_allocation},
                                     {"fail_upload", options.fail_upload},
                                     {"fail_download", options.fail_download},
                                     {"fail_run", options.fail_run},
                                     {"fail_call", options.fail_call},
                                     {"lose_after", options.lose_after}}) {
    if (number != 0) text += fmt::format(",{}={}", name, number);
  }
  if (options.latency.count() != 0) text += fmt::format(",latency={}ns", options.latency.count());
  if (options.staging_threshold) text += fmt::format(",staging={}", *options.staging_threshold);
  return text;
}

}  // namespace

bool check_sim_options(std::string_view input) {
  SimOptions options;
  try {
    options = parse_sim_options(input);
  } catch (InvalidArgument const&) {
    return false;
  }
  for (double const rate : {options.upload_bytes_per_second, options.download_bytes_per_second,
                            options.copy_bytes_per_second, options.peer_bytes_per_second}) {
    expect(std::isfinite(rate) && rate >= 0, "a rate that no link has");
  }
  expect(options.latency.count() >= 0, "a latency below nothing");
  if (auto const text = written(options)) {
    expect(parse_sim_options(*text) == options, fmt::format("written out it means something else: {}", *text));
  }
  return true;
}

}  // namespace unimem::fuzz
