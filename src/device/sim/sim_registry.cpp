#include <unimem/core/error.hpp>

#include "core/held_over_fork.hpp"
#include "device/sim/sim_device.hpp"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace unimem {
namespace {

struct Sims {
  std::mutex mutex;
  std::vector<std::unique_ptr<detail::SimDevice>> devices;
  detail::HeldOverFork held{detail::HeldOverFork::Order::device, mutex};
};

/// Never destroyed: devices live as long as the process.
Sims& sims() {
  static auto& instance = *new Sims;
  return instance;
}

detail::SimDevice& simulated(Device& sim) {
  auto* const device = dynamic_cast<detail::SimDevice*>(&sim);
  if (device == nullptr) throw InvalidArgument("sim", std::string(sim.id()), "a simulated device");
  return *device;
}

}  // namespace

Device& make_sim(SimOptions const& options) {
  std::lock_guard const lock{sims().mutex};
  auto& devices = sims().devices;
  devices.push_back(std::make_unique<detail::SimDevice>(fmt::format("sim:{}", devices.size()), options));
  return *devices.back();
}

void set_sim_faults(Device& sim, SimOptions const& options) {
  simulated(sim).faults().replace(options);
}

std::size_t sim_peak_bytes(Device& sim) {
  return simulated(sim).peak_bytes();
}

Device* detail::find_sim(std::size_t index) {
  std::lock_guard const lock{sims().mutex};
  return index < sims().devices.size() ? sims().devices[index].get() : nullptr;
}

std::vector<std::reference_wrapper<Device>> detail::all_sims() {
  std::lock_guard const lock{sims().mutex};
  std::vector<std::reference_wrapper<Device>> all;
  for (auto const& device : sims().devices) all.emplace_back(*device);
  return all;
}

}  // namespace unimem
