#include "run_report.hpp"

#include <unimem/core/size.hpp>
#include <unimem/report/json.hpp>
#include <unimem/report/text.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace unimem::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Builds the `result` object; what is not a number (the mean of nothing) becomes null, all that JSON has for it.
struct ResultJson {
  Json operator()(HistogramResult const& histogram) const {
    Json json;
    json["histogram"] = histogram.counts;
    json["entropy_bits_per_byte"] = histogram.entropy_bits_per_byte;
    return json;
  }
  Json operator()(StatisticsResult const& statistics) const {
    Json json;
    json["count"] = statistics.count;
    json["min"] = number(statistics.min);
    json["max"] = number(statistics.max);
    json["mean"] = statistics.mean;
    json["standard_deviation"] = statistics.standard_deviation;
    return json;
  }
  Json operator()(MappingResult const& mapping) const {
    Json json;
    json["elements"] = mapping.elements;
    return json;
  }
  Json operator()(ReductionResult const& reduction) const {
    Json json;
    json["dtype"] = to_string(reduction.element);
    auto& values = json["values"] = Json::array();
    for (auto const& value : reduction.values) values.push_back(number(value));
    return json;
  }

 private:
  static Json number(ElementValue const& value) {
    return std::visit([](auto exact) { return Json(exact); }, value);
  }
};

class Lines {
 public:
  template <class... Arguments>
  void add(std::string_view what, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += fmt::format("  {:<13} ", what);
    text_ += fmt::format(format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }
  void add_raw(std::string const& text) { text_ += text; }
  [[nodiscard]] std::string const& text() const noexcept { return text_; }

 private:
  std::string text_;
};

/// A number in as many digits as tell it from all others. One that is none is "nan": its sign says nothing.
template <class Number>
std::string spelled(Number number) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(number)) return "nan";
  }
  return fmt::format("{}", number);
}

/// Adds the lines of a result.
struct ResultText {
  Lines& lines;

  void operator()(HistogramResult const& histogram) const {
    constexpr std::size_t shown = 5;
    std::array<std::size_t, 256> by_count{};
    std::iota(by_count.begin(), by_count.end(), std::size_t{0});
    auto const& counts = histogram.counts;
    std::ranges::sort(by_count, [&](auto a, auto b) { return std::pair(counts[b], a) < std::pair(counts[a], b); });
    auto const total = std::reduce(counts.begin(), counts.end(), std::uint64_t{0});

    lines.add("entropy", "{:.4f} bits per byte", histogram.entropy_bits_per_byte);
    std::string commonest;
    for (std::size_t i = 0; i < shown && counts[by_count[i]] > 0; ++i) {
      commonest += fmt::format("{}0x{:02x} {:.2f} %", i == 0 ? "" : ", ", by_count[i],
                               100 * static_cast<double>(counts[by_count[i]]) / static_cast<double>(total));
    }
    if (!commonest.empty()) lines.add("commonest", "{}", commonest);
  }
  void operator()(StatisticsResult const& statistics) const {
    auto const exact = [](ElementValue const& value) {
      return std::visit([](auto number) { return spelled(number); }, value);
    };
    lines.add("count", "{}", statistics.count);
    lines.add("min", "{}", exact(statistics.min));
    lines.add("max", "{}", exact(statistics.max));
    lines.add("mean", "{}", spelled(statistics.mean));
    lines.add("deviation", "{}", spelled(statistics.standard_deviation));
  }
  void operator()(MappingResult const& mapping) const { lines.add("elements", "{}", mapping.elements); }
  void operator()(ReductionResult const& reduction) const {
    constexpr std::size_t shown = 8;
    std::string text;
    for (std::size_t i = 0; i < std::min(shown, reduction.values.size()); ++i) {
      if (i != 0) text += ", ";
      text += std::visit([](auto number) { return spelled(number); }, reduction.values[i]);
    }
    if (reduction.values.size() > shown) text += fmt::format(", … ({} in all: --json)", reduction.values.size());
    lines.add("values", "{}", text);
  }
};

}  // namespace

namespace {

Json files_json(StreamResult const& result) {
  auto files = Json::array();
  for (auto const& [path, bytes, checksums] : result.files) {
    Json file;
    file["path"] = path.string();
    file["bytes"] = bytes;
    if (result.checksum) file["checksums"] = checksums;
    files.push_back(std::move(file));
  }
  return files;
}

/// Of one chunk the checksum itself, else how many there are.
std::string checksums_text(StreamResult const& result) {
  std::size_t count = 0;
  for (auto const& file : result.files) count += file.checksums.size();
  if (count == 1) {
    for (auto const& file : result.files) {
      if (!file.checksums.empty()) return fmt::format("{} {}", to_string(*result.checksum), file.checksums.front());
    }
  }
  return fmt::format("{} of {} chunks of {}", to_string(*result.checksum), count, format_size(result.checksum_bytes));
}

}  // namespace

std::string run_json(StreamResult const& result) {
  Json json;
  json["kernel"] = result.kernel;
  json["device"] = result.device;
  json["bytes"] = result.bytes;
  json["chunks"] = result.chunks;
  json["chunk_bytes"] = result.chunk_bytes;
  json["access"] = to_string(result.access);
  json["direct_bytes"] = result.direct_bytes;
  json["seconds"] = result.seconds;
  json["gigabytes_per_second"] = result.gigabytes_per_second();
  json["result"] = std::visit(ResultJson{}, result.result);
  json["host_to_device_bytes"] = result.host_to_device_bytes;
  json["device_to_host_bytes"] = result.device_to_host_bytes;
  json["peak_device_bytes"] = result.peak_device_bytes;
  json["pool"] = Json::parse(to_json(result.pool));
  json["retries"] = result.retries;
  json["resumed_bytes"] = result.resumed_bytes;
  json["files"] = files_json(result);
  if (result.checksum) {
    json["checksum"] = to_string(*result.checksum);
    json["checksum_bytes"] = result.checksum_bytes;
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string run_text(StreamResult const& result, RunCommand const& command) {
  Lines lines;
  auto const more = command.files.size() > 1 ? fmt::format(" and {} more", command.files.size() - 1) : std::string();
  lines.add_raw(fmt::format("{}{}: {} on {}\n", command.files.front().native(), more, result.kernel, result.device));
  lines.add("data", "{} of {} in {} chunk{} of {}", format_size(result.bytes), to_string(result.element), result.chunks,
            result.chunks == 1 ? "" : "s", format_size(result.chunk_bytes));
  lines.add("read", "{}, {} past the page cache", to_string(result.access), format_size(result.direct_bytes));
  lines.add("time", "{:.3f} s, {:.2f} GB/s", result.seconds, result.gigabytes_per_second());
  std::visit(ResultText{lines}, result.result);
  if (!command.output.empty()) lines.add("written", "{}", command.output.native());
  if (result.resumed_bytes != 0) lines.add("resumed", "after {}", format_size(result.resumed_bytes));
  if (result.checksum) lines.add(command.verify.empty() ? "checksums" : "verified", "{}", checksums_text(result));
  if (!command.manifest.empty()) lines.add("manifest", "{}", command.manifest.native());
  if (result.retries != 0) lines.add("retries", "{}", result.retries);
  lines.add("moved", "{} to the device, {} back", format_size(result.host_to_device_bytes),
            format_size(result.device_to_host_bytes));
  lines.add("device memory", "at most {}, {} buffer{}", format_size(result.peak_device_bytes), result.buffers,
            result.buffers == 1 ? "" : "s");
  lines.add_raw(fmt::format("  {:<13} {}", "pool", to_text(result.pool)));
  return lines.text();
}

}  // namespace unimem::cli
