#include "device/cuda_standin/device_identity.hpp"
#include "device/cuda_standin/machine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

// What the environment says at cuInit.

namespace unimem::standin {
namespace {

constexpr std::size_t usual_capacity = std::size_t{256} << 20;

std::string_view variable(char const* name) {
  auto const* const value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

std::vector<std::string> parts(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    auto const comma = text.find(',');
    all.emplace_back(text.substr(0, comma));
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
  }
  return all;
}

/// A setting nobody can read is a mistake of the test, and would silently test something else.
[[noreturn]] void reject(char const* name, std::string_view value) {
  std::fprintf(stderr, "stand-in CUDA driver: %s cannot be read: '%.*s'\n", name, static_cast<int>(value.size()),
               value.data());
  std::abort();
}

std::size_t number(char const* name, std::string_view value) {
  std::string const text{value};
  char* end = nullptr;
  auto const result = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0') reject(name, value);
  return result;
}

std::size_t number_or(char const* name, std::size_t otherwise) {
  auto const value = variable(name);
  return value.empty() ? otherwise : number(name, value);
}

/// Which of the devices one entry of CUDA_VISIBLE_DEVICES means.
std::optional<int> meant(std::string const& entry, int count) {
  if (entry.starts_with("GPU-")) {
    for (int device = 0; device < count; ++device)
      if (spelled_uuid(device).starts_with(entry)) return device;
    return std::nullopt;
  }
  char* end = nullptr;
  auto const ordinal = std::strtol(entry.c_str(), &end, 10);
  if (entry.empty() || *end != '\0' || ordinal < 0 || ordinal >= count) return std::nullopt;
  return static_cast<int>(ordinal);
}

std::vector<int> visible_devices(int count) {
  std::vector<int> all;
  auto const* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int device = 0; device < count; ++device) all.push_back(device);
    return all;
  }
  for (auto const& entry : parts(list)) {
    auto const device = meant(entry, count);
    if (!device) break;  // the real driver, too, shows only what stands before the first it does not know
    if (std::ranges::find(all, *device) != all.end()) return {};  // named twice: none at all, as there
    all.push_back(*device);
  }
  return all;
}

/// The one instance of a partitioned GPU that is shown, or none.
std::vector<int> visible_instances(int count) {
  auto const* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) return {0};
  auto const entries = parts(list);
  for (int instance = 0; instance < count && !entries.empty(); ++instance) {
    bool const by_name = entries[0].starts_with("MIG-") && spelled_instance_uuid(instance).starts_with(entries[0]);
    if (by_name || (entries[0] == "0" && instance == 0)) return {instance};
  }
  return {};
}

}  // namespace

void configure(Machine& machine) {
  auto const instances = static_cast<int>(number_or("UNIMEM_CUDA_STANDIN_INSTANCES", 0));
  auto const count = static_cast<int>(number_or("UNIMEM_CUDA_STANDIN_DEVICES", 2));
  machine.partitioned = instances > 0;
  machine.usual_hardware_queues = static_cast<unsigned>(number_or("UNIMEM_CUDA_STANDIN_HARDWARE_QUEUES", 0));
  machine.hardware_queues = machine.usual_hardware_queues;
  std::vector<std::size_t> capacities;
  for (auto const& entry : parts(variable("UNIMEM_CUDA_STANDIN_CAPACITY")))
    capacities.push_back(number("UNIMEM_CUDA_STANDIN_CAPACITY", entry));
  if (capacities.empty()) capacities.push_back(usual_capacity);
  constexpr auto* attributes = "UNIMEM_CUDA_STANDIN_ATTRIBUTES";
  for (auto const& entry : parts(variable(attributes))) {
    auto const colon = std::min(entry.find(':'), entry.size() - 1);
    auto const which = static_cast<int>(number(attributes, std::string_view{entry}.substr(0, colon)));
    machine.attributes[DeviceAttribute{which}] =
        static_cast<int>(number(attributes, std::string_view{entry}.substr(colon + 1)));
  }
  for (auto const physical : machine.partitioned ? visible_instances(instances) : visible_devices(count)) {
    DeviceState device;
    device.physical = physical;
    device.capacity = machine.partitioned
                          ? capacities[0] / static_cast<std::size_t>(instances)
                          : capacities[std::min(static_cast<std::size_t>(physical), capacities.size() - 1)];
    machine.devices.push_back(std::move(device));
  }
  auto const reaction = variable("UNIMEM_CUDA_STANDIN_VIOLATIONS");
  if (reaction == "print")
    machine.reaction = Reaction::print;
  else if (reaction == "abort")
    machine.reaction = Reaction::abort;
  else if (!reaction.empty())
    reject("UNIMEM_CUDA_STANDIN_VIOLATIONS", reaction);
  auto const faults = variable("UNIMEM_CUDA_STANDIN_FAULT");
  if (!machine.faults.plan_all(faults)) reject("UNIMEM_CUDA_STANDIN_FAULT", faults);
}

}  // namespace unimem::standin
