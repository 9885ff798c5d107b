#include <unimem/core/error.hpp>

#include "core/fork.hpp"
#include "device/sim/sim_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace unimem {
namespace {

struct Sims {
  std::mutex mutex;
  std::vector<std::unique_ptr<detail::SimDevice>> devices;
  std::vector<std::pair<SimOptions, Device*>> named;  ///< by what they were asked for with
};

/// Never destroyed: devices live as long as the process. A forked child has none until it makes some.
Sims& sims() {
  static constinit detail::PerProcess<Sims> instance;
  return instance.get();
}

detail::SimDevice& simulated(Device& sim) {
  auto* const device = dynamic_cast<detail::SimDevice*>(&sim);
  if (device == nullptr) throw InvalidArgument("sim", std::string(sim.id()), "a simulated device");
  return *device;
}

/// The caller holds the lock.
Device& make_one(SimOptions const& options) {
  auto& devices = sims().devices;
  devices.push_back(std::make_unique<detail::SimDevice>(fmt::format("sim:{}", devices.size()), options));
  return *devices.back();
}

}  // namespace

Device& make_sim(SimOptions const& options) {
  std::lock_guard const lock{sims().mutex};
  return make_one(options);
}

Device& detail::sim_with(SimOptions const& options) {
  std::lock_guard const lock{sims().mutex};
  auto& named = sims().named;
  auto const found = std::ranges::find(named, options, &std::pair<SimOptions, Device*>::first);
  if (found != named.end()) return *found->second;
  named.reserve(named.size() + 1);  // what is made stays, so it must be found again
  return *named.emplace_back(options, &make_one(options)).second;
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
