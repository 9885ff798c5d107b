#include "bench_figures.hpp"
#include "commands.hpp"
#include "named_device.hpp"
#include "plain_text.hpp"
#include "standard_streams.hpp"

#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <string>

namespace unimem::cli {
namespace {

std::string json_of(Figures const& figures, Device const& device, bool quick) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["device"] = device.id();
  json["name"] = device.info().name;
  json["driver"] = device.info().driver;
  json["quick"] = quick;
  auto& list = json["figures"] = Json::array();
  for (auto const& figure : figures.figures) {
    auto& one = list.emplace_back();
    one["benchmark"] = to_string(figure.benchmark);
    one["name"] = figure.name;
    one["bytes"] = figure.bytes == 0 ? Json() : Json(figure.bytes);
    one["median"] = figure.median;
    one["least"] = figure.least;
    one["most"] = figure.most;
    one["unit"] = figure.unit;
    one["measurements"] = figure.measurements;
  }
  auto& missing = json["left_out"] = Json::array();
  for (auto const& [benchmark, reason] : figures.left_out) {
    missing.push_back(Json{{"benchmark", to_string(benchmark)}, {"reason", reason}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string text_of(Figures const& figures, Device const& device) {
  auto const& info = device.info();
  auto text = fmt::format("{} {}, {}: the median, and the least and most\n", device.id(), plain_text(info.name),
                          plain_text(info.driver));
  for (auto const& figure : figures.figures) {
    auto const what =
        figure.bytes == 0 ? std::string(figure.name) : fmt::format("{}, {}", format_size(figure.bytes), figure.name);
    text += fmt::format("  {:<11}{:<58}{:>10.2f} {:<5}{:>10.2f} to {:.2f}\n", to_string(figure.benchmark), what,
                        figure.median, figure.unit, figure.least, figure.most);
  }
  for (auto const& [benchmark, reason] : figures.left_out) {
    text += fmt::format("  {:<11}left out: {}\n", to_string(benchmark), reason);
  }
  return text;
}

}  // namespace

int run(BenchCommand const& command) {
  auto& device = command.device ? device_named(*command.device) : default_device();
  auto const figures = measure(device, command.only, command.quick);
  write_standard_output(command.json ? json_of(figures, device, command.quick) : text_of(figures, device));
  return EXIT_SUCCESS;
}

}  // namespace unimem::cli
