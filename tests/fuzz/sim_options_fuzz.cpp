#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include "fuzz/target.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <initializer_list>
#include <set>

namespace unimem::fuzz {
namespace {

/// As text again, which may leave out what is the default.
std::string written(SimOptions const& options) {
  auto text = fmt::format("memory={}", options.memory_bytes);
  auto const add = [&](char const* key, auto const& value) { text += fmt::format(",{}={}", key, value); };
  auto const rate = [&](char const* key, double bytes) {
    // The largest size is rounded up to 2^64, which is no size.
    if (bytes > 0) add(key, bytes >= 0x1p64 ? "18446744073709551615/s" : fmt::format("{:.0f}B/s", bytes));
  };
  rate("h2d", options.upload_bytes_per_second);
  rate("d2h", options.download_bytes_per_second);
  rate("d2d", options.copy_bytes_per_second);
  rate("peer_rate", options.peer_bytes_per_second);
  add("peer", options.peer ? 1 : 0);
  add("heedless", options.heedless ? 1 : 0);
  add("latency", fmt::format("{}ns", options.latency.count()));
  if (options.staging_threshold) add("staging", *options.staging_threshold);
  add("batch", options.batches ? 1 : 0);
  add("fail_alloc", options.fail_allocation);
  add("fail_upload", options.fail_upload);
  add("fail_download", options.fail_download);
  add("fail_run", options.fail_run);
  add("fail_call", options.fail_call);
  add("lose_after", options.lose_after);
  return text;
}

bool run_sim_options(std::string_view input) {
  auto const options = taken<InvalidArgument>([&] { return parse_sim_options(input); });

  // Each option stands for itself: all are taken if each is, and no key is there twice, in whichever order.
  bool each = true;
  std::string backwards;
  std::set<std::string_view> keys;
  for (auto rest = input; !input.empty();) {
    auto const comma = rest.find(',');
    auto const item = rest.substr(0, comma);
    each = each && !item.empty() && taken<InvalidArgument>([&] { return parse_sim_options(item); }) &&
           keys.insert(item.substr(0, item.find('='))).second;
    backwards = std::string(item) + (backwards.empty() ? "" : "," + backwards);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  require(options.has_value() == each,
          options ? "options are taken of which one is not" : "options are refused though each is taken");
  if (!options) return false;
  require(parse_sim_options(backwards) == *options, "the order of options matters");

  require(options->memory_bytes > 0, "a device without memory");
  require(options->latency.count() >= 0 && options->latency <= std::chrono::hours{1}, "a latency beyond an hour");
  for (auto const rate : {options->upload_bytes_per_second, options->download_bytes_per_second,
                          options->copy_bytes_per_second, options->peer_bytes_per_second}) {
    require(rate == 0 || (std::isfinite(rate) && rate >= 1 && rate <= 0x1p64), "a rate that no size has");
  }
  require(parse_sim_options(written(*options)) == *options, "what is written from options reads as others");
  return true;
}

Enlisted const sim_options_target{{"sim_options", run_sim_options}};

}  // namespace
}  // namespace unimem::fuzz
