#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "core/fork_locks.hpp"
#include "device/backends.hpp"
#include "device/sim/sim_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace unimem {
namespace {

detail::FoundDevices find_cpu() {
  detail::FoundDevices found;
  found.devices.push_back(detail::make_cpu_device());
  return found;
}

detail::FoundDevices find_metal() {
  return {{}, "Metal needs macOS"};
}

/// One backend and what was found of it, looked for when it is first asked for: naming the cpu must not wake a driver.
class BackendDevices {
 public:
  explicit BackendDevices(detail::BackendEntry const& entry) : entry_(entry) {}

  [[nodiscard]] Backend backend() const noexcept { return entry_.backend; }

  [[nodiscard]] detail::FoundDevices const& found() {
    std::call_once(looked_, [this] {
      // Loaders and drivers take code from where the environment says, by names of their own (OCL_ICD_VENDORS).
      if (entry_.loads_driver && runs_with_other_rights()) {
        found_ = {{}, "drivers are not loaded into a program that is setuid, setgid or has capabilities of its file"};
        return;
      }
      try {
        found_ = entry_.find();
      } catch (std::exception const& error) {
        found_ = {{}, error.what()};
      }
    });
    return found_;
  }

  [[nodiscard]] Device* at(std::size_t index) {
    auto const& devices = found().devices;
    return index < devices.size() ? devices[index].get() : nullptr;
  }

  /// Device `index` with options; the same device for the same spelling. Throws InvalidArgument.
  [[nodiscard]] Device& open(std::size_t index, std::string_view options) {
    if (entry_.open == nullptr)
      throw InvalidArgument("device options", std::string(options), "none: this device has no options");
    if (!opened_mutex_.lock()) detail::throw_inherited("opening a device with options");
    std::lock_guard const lock{opened_mutex_, std::adopt_lock};
    auto& device = opened_[{index, std::string(options)}];
    if (!device) device = entry_.open(index, options);
    return *device;
  }

  Device& keep(std::size_t index, std::string_view options, std::unique_ptr<Device> device) {
    if (!opened_mutex_.lock()) detail::throw_inherited("opening a device with options");
    std::lock_guard const lock{opened_mutex_, std::adopt_lock};
    return *(opened_[{index, std::string(options)}] = std::move(device));
  }

 private:
  detail::BackendEntry const entry_;
  std::once_flag looked_;
  detail::FoundDevices found_;
  detail::ForkableMutex opened_mutex_;
  std::map<std::pair<std::size_t, std::string>, std::unique_ptr<Device>> opened_;
};

/// Every backend with hardware behind it, in the order of `devices()`. Never destroyed: devices live as long as the
/// process, and the drivers behind them may be gone before this would be.
std::array<BackendDevices, 4>& backends() {
  static auto& table = *new std::array<BackendDevices, 4>{
      BackendDevices{{Backend::cpu, find_cpu, false, nullptr}},
      BackendDevices{{Backend::opencl, detail::find_opencl_devices, true, detail::open_opencl_device}},
      BackendDevices{{Backend::cuda, detail::find_cuda_devices, true, detail::open_cuda_device}},
      BackendDevices{{Backend::metal, find_metal, false, nullptr}},
  };
  return table;
}

BackendDevices& devices_of(Backend backend) {
  return *std::find_if(backends().begin(), backends().end(), [&](auto const& row) { return row.backend() == backend; });
}

std::optional<std::size_t> read_index(std::string_view text) {
  std::size_t index = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return index;
}

/// Why the backend that `id` names has no device at all; empty where it has some, or there is no such backend.
std::string why_unavailable(std::string_view id) {
  auto const name = id.substr(0, id.find_first_of(":,"));
  for (auto const& [backend, reason] : unavailable_backends()) {
    if (name == to_string(backend)) return fmt::format("{} is unavailable: {}", name, reason);
  }
  return {};
}

[[noreturn]] void throw_not_found(std::string_view id) {
  std::vector<std::string> available;
  for (Device const& device : devices()) available.emplace_back(device.id());
  throw NotFound("device", std::string(id), std::move(available), why_unavailable(id));
}

/// `sim`, `sim:options` or `sim:index`.
Device& sim(std::string_view id, std::string_view rest) {
  auto const index = read_index(rest);
  if (!index) return detail::sim_with(parse_sim_options(rest));
  if (auto* const device = detail::find_sim(*index)) return *device;
  throw_not_found(id);
}

}  // namespace

detail::FoundDevices const& detail::found_devices(Backend backend) {
  return devices_of(backend).found();
}

Device& detail::keep_device(std::size_t index, std::string_view options, std::unique_ptr<Device> device) {
  auto& backend = devices_of(device->backend());
  return backend.keep(index, options, std::move(device));
}

std::vector<std::reference_wrapper<Device>> devices() {
  std::vector<std::reference_wrapper<Device>> all;
  for (auto& backend : backends()) {
    for (auto const& device : backend.found().devices) all.emplace_back(*device);
  }
  auto const sims = detail::all_sims();
  all.insert(all.end(), sims.begin(), sims.end());
  return all;
}

Device& device(std::string_view id) {
  auto const name_end = id.find_first_of(":,");
  auto const name = id.substr(0, name_end);
  auto const rest = name_end == std::string_view::npos ? std::string_view{} : id.substr(name_end + 1);
  if (name == "sim" && (name_end == std::string_view::npos || id[name_end] == ':')) return sim(id, rest);

  for (auto& backend : backends()) {
    if (name != to_string(backend.backend())) continue;
    if (backend.backend() == Backend::cpu) {
      if (name == id)
        return *backend.at(0);      // NOLINT(clang-analyzer-core.uninitialized.UndefReturn): there always is one
      if (read_index(rest)) break;  // there is only the one, and it has no number
      return backend.open(0, rest);
    }
    auto const comma = rest.find(',');
    auto const index = read_index(rest.substr(0, comma));
    auto* const plain = name != id && id[name_end] == ':' && index ? backend.at(*index) : nullptr;
    if (plain == nullptr) break;
    return comma == std::string_view::npos ? *plain : backend.open(*index, rest.substr(comma + 1));
  }
  throw_not_found(id);
}

Device& default_device() {
  static Device& chosen = [&]() -> Device& {
    if (auto const id = environment("UNIMEM_DEVICE")) return device(*id);
    for (auto const backend : {Backend::cuda, Backend::metal}) {
      if (auto* const first = devices_of(backend).at(0)) return *first;
    }
    for (auto const& candidate : devices_of(Backend::opencl).found().devices) {
      if (candidate->info().is_gpu) return *candidate;
    }
    return *devices_of(Backend::cpu).at(0);
  }();
  return chosen;
}

std::vector<UnavailableBackend> unavailable_backends() {
  std::vector<UnavailableBackend> all;
  for (auto& backend : backends()) {
    if (backend.found().devices.empty()) all.push_back({backend.backend(), backend.found().reason});
  }
  return all;
}

}  // namespace unimem
