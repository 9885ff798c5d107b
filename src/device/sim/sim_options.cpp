#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/sim.hpp>

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>

namespace unimem {
namespace {

constexpr std::string_view spellings =
    "memory=SIZE, h2d=SIZE/s, d2h=SIZE/s, d2d=SIZE/s, peer_rate=SIZE/s, peer=0 or 1, heedless=0 or 1, latency=TIME, "
    "staging=SIZE, batch=0 or 1, fail_alloc=N, fail_upload=N, fail_download=N, fail_run=N, fail_call=N or lose_after=N";

std::uint64_t read_count(std::string_view key, std::string_view text) {
  std::uint64_t count = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) {
    throw InvalidArgument(std::string(key), std::string(text), "the number of a call, counting from 1, or 0 for never");
  }
  return count;
}

bool read_flag(std::string_view key, std::string_view text) {
  if (text != "0" && text != "1") throw InvalidArgument(std::string(key), std::string(text), "0 or 1");
  return text == "1";
}

double read_bandwidth(std::string_view key, std::string_view text) {
  constexpr std::string_view per_second = "/s";
  if (text.ends_with(per_second)) {
    auto const bytes = parse_size(text.substr(0, text.size() - per_second.size()), key);
    if (bytes != 0) return static_cast<double>(bytes);
  }
  throw InvalidArgument(std::string(key), std::string(text), "a positive size per second, such as 12GB/s");
}

std::chrono::nanoseconds read_time(std::string_view key, std::string_view text) {
  struct Unit {
    std::string_view name;
    double nanoseconds;
  };
  // "s" last: every other unit ends in it too.
  constexpr std::array units{Unit{"ns", 1}, Unit{"us", 1e3}, Unit{"ms", 1e6}, Unit{"s", 1e9}};
  for (auto const unit : units) {
    if (!text.ends_with(unit.name)) continue;
    auto const number = text.substr(0, text.size() - unit.name.size());
    double value = 0;
    auto const [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), value, std::chars_format::fixed);
    // An hour is more than is ever simulated, and keeps deadlines far from the end of the clock.
    bool const reads = error == std::errc{} && end == number.data() + number.size();
    if (!reads || !(value >= 0) || value * unit.nanoseconds > 3600e9) break;
    return std::chrono::nanoseconds{std::llround(value * unit.nanoseconds)};
  }
  throw InvalidArgument(std::string(key), std::string(text),
                        "a time up to an hour, such as 10us (units ns, us, ms, s)");
}

void read_option(SimOptions& options, std::string_view key, std::string_view value) {
  if (key == "memory") {
    options.memory_bytes = parse_size(value, key);
    if (options.memory_bytes == 0) throw InvalidArgument("memory", std::string(value), "at least 1 byte");
  } else if (key == "h2d") {
    options.upload_bytes_per_second = read_bandwidth(key, value);
  } else if (key == "d2h") {
    options.download_bytes_per_second = read_bandwidth(key, value);
  } else if (key == "d2d") {
    options.copy_bytes_per_second = read_bandwidth(key, value);
  } else if (key == "peer_rate") {
    options.peer_bytes_per_second = read_bandwidth(key, value);
  } else if (key == "peer") {
    options.peer = read_flag(key, value);
  } else if (key == "heedless") {
    options.heedless = read_flag(key, value);
  } else if (key == "latency") {
    options.latency = read_time(key, value);
  } else if (key == "staging") {
    options.staging_threshold = parse_size(value, key);
  } else if (key == "batch") {
    options.batches = read_flag(key, value);
  } else if (key == "fail_alloc") {
    options.fail_allocation = read_count(key, value);
  } else if (key == "fail_upload") {
    options.fail_upload = read_count(key, value);
  } else if (key == "fail_download") {
    options.fail_download = read_count(key, value);
  } else if (key == "fail_run") {
    options.fail_run = read_count(key, value);
  } else if (key == "fail_call") {
    options.fail_call = read_count(key, value);
  } else if (key == "lose_after") {
    options.lose_after = read_count(key, value);
  } else {
    throw InvalidArgument("sim option", std::string(key), std::string(spellings));
  }
}

}  // namespace

SimOptions parse_sim_options(std::string_view text) {
  SimOptions options;
  std::set<std::string_view> seen;
  while (!text.empty()) {
    auto const comma = text.find(',');
    auto const item = text.substr(0, comma);
    auto const equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw InvalidArgument("sim option", std::string(item), std::string(spellings));
    }
    auto const key = item.substr(0, equals);
    if (!seen.insert(key).second) throw InvalidArgument("sim option", std::string(key), "given once");
    read_option(options, key, item.substr(equals + 1));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) throw InvalidArgument("sim option", "", std::string(spellings));
  }
  return options;
}

}  // namespace unimem
