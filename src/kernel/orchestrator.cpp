#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/orchestrator.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

namespace unimem {
namespace {

bool can_run(Kernel const& kernel, Device const& device) {
  return device.info().runs_host_form ? kernel.has_host() : kernel.has_source();
}

BufferCore* buffer_of(LaunchArgument const& argument) {
  return argument.buffer.operand.buffer;
}

/// Those that the buffers are at home on, by argument, then those they have been brought to.
std::vector<Device*> devices_of(std::span<const LaunchArgument> arguments) {
  std::vector<Device*> found;
  auto const add = [&](Device* device) {
    if (std::ranges::find(found, device) == found.end()) found.push_back(device);
  };
  for (auto const& argument : arguments) {
    if (auto* const buffer = buffer_of(argument)) add(&buffer->default_device());
  }
  for (auto const& argument : arguments) {
    auto* const buffer = buffer_of(argument);
    if (buffer == nullptr) continue;
    for (auto* const device : buffer->devices_with_memory()) add(device);
  }
  return found;
}

/// What would have to be brought there.
std::size_t missing_on(Device& device, std::span<const LaunchArgument> arguments) {
  std::size_t bytes = 0;
  for (auto const& argument : arguments) {
    auto const& operand = argument.buffer.operand;
    if (operand.buffer == nullptr || operand.intent == Intent::write) continue;
    bytes += operand.buffer->missing_on(device, operand.range);
  }
  return bytes;
}

DeviceChoice among(std::vector<Device*> const& devices, Kernel const& kernel,
                   std::span<const LaunchArgument> arguments) {
  DeviceChoice best;
  std::size_t least = 0;
  for (auto* const device : devices) {
    if (device->is_lost() || !can_run(kernel, *device)) continue;
    auto const missing = missing_on(*device, arguments);
    if (best.device != nullptr && missing >= least) continue;
    best.device = device;
    least = missing;
  }
  if (best.device != nullptr) {
    best.reason = fmt::format("{} bytes to be read are missing on {}, the least of {} device{}", least,
                              best.device->id(), devices.size(), devices.size() == 1 ? "" : "s");
  }
  return best;
}

std::string missing_form(Device const& device) {
  if (device.is_lost()) return fmt::format("{} is lost", device.id());
  return fmt::format("{} needs a {} form", device.id(), device.info().runs_host_form ? "host" : "source");
}

/// In their order, but for `first`, if it is one of them.
std::vector<Device*> devices_under(Backend backend, Device* first) {
  std::vector<Device*> found;
  std::vector<std::string> ids;
  if (first != nullptr && first->backend() == backend) found.push_back(first);
  for (Device& device : devices()) {
    ids.emplace_back(device.id());
    if (device.backend() == backend && &device != first) found.push_back(&device);
  }
  if (!found.empty()) return found;
  std::string reason;
  for (auto const& missing : unavailable_backends()) {
    if (missing.backend == backend) reason = fmt::format("{} is unavailable: {}", to_string(backend), missing.reason);
  }
  throw NotFound("device", std::string(to_string(backend)), std::move(ids), std::move(reason));
}

void check(ExecutionOptions const& options) {
  auto const* const device = options.queue != nullptr ? &options.queue->device() : options.device;
  if (options.device != nullptr && options.device != device) {
    throw InvalidArgument("ExecutionOptions::device", std::string(options.device->id()),
                          fmt::format("the queue's, {}, or none", device->id()));
  }
  if (device != nullptr && options.backend && *options.backend != device->backend()) {
    throw InvalidArgument("ExecutionOptions::backend", std::string(to_string(*options.backend)),
                          fmt::format("that of {}, or none", device->id()));
  }
}

Queue* queue_for(ExecutionOptions const& options, DeviceChoice const& choice) {
  return options.queue != nullptr ? options.queue : &choice.device->default_queue();
}

std::vector<BufferStatistics> statistics_of(std::span<BufferCore* const> buffers) {
  std::vector<BufferStatistics> result;
  result.reserve(buffers.size());
  for (auto const* const buffer : buffers) result.push_back(buffer->statistics());
  return result;
}

std::vector<BufferCore*> buffers_of(std::span<const LaunchArgument> arguments) {
  std::vector<BufferCore*> buffers;
  for (auto const& argument : arguments) {
    if (auto* const buffer = buffer_of(argument)) buffers.push_back(buffer);
  }
  std::ranges::sort(buffers);
  buffers.erase(std::ranges::unique(buffers).begin(), buffers.end());
  return buffers;
}

}  // namespace

DeviceChoice choose_device(Kernel const& kernel, std::span<const LaunchArgument> arguments,
                           ExecutionOptions const& options) {
  check(options);
  if (options.queue != nullptr) return {&options.queue->device(), "the options name its queue"};
  if (options.device != nullptr) return {options.device, "the options name it"};
  auto candidates = devices_of(arguments);
  auto* const by_default = candidates.empty() ? options.default_device : nullptr;
  if (options.backend) {
    std::erase_if(candidates, [&](Device const* device) { return device->backend() != *options.backend; });
    // Where the data is, if that is of the wanted kind; any of that kind else.
    if (candidates.empty()) candidates = devices_under(*options.backend, by_default);
  }
  if (candidates.empty()) {
    auto& device = by_default != nullptr ? *by_default : default_device();
    if (can_run(kernel, device)) return {&device, "it is the default device, and there are no buffers"};
    candidates.push_back(&device);
  }
  if (auto best = among(candidates, kernel, arguments); best.device != nullptr) return best;
  auto const refused = missing_form(*candidates.front());
  auto& cpu = device("cpu");
  if (!options.backend && can_run(kernel, cpu)) return {&cpu, refused + ", which the kernel does not have"};
  throw KernelError(std::string(kernel.name()), refused);
}

struct Orchestrator::State {
  mutable std::shared_mutex mutex;
  std::map<std::string, Kernel, std::less<>> kernels;

  [[nodiscard]] NotFound unknown(std::string_view name) const { return {"kernel", std::string(name), names()}; }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> result;
    result.reserve(kernels.size());
    for (auto const& [name, kernel] : kernels) result.push_back(name);
    return result;
  }
};

Orchestrator::Orchestrator() : state_(std::make_unique<State>()) {}
Orchestrator::~Orchestrator() = default;

void Orchestrator::register_kernel(Kernel const& kernel) {
  auto const name = std::string(kernel.name());
  if (name.empty()) throw InvalidArgument("kernel", "without a name", "a kernel with a name, not moved from");
  std::unique_lock const lock{state_->mutex};
  auto const [there, is_new] = state_->kernels.try_emplace(name, kernel);
  if (!is_new && !there->second.is_same_as(kernel)) {
    throw InvalidArgument("kernel", fmt::format("'{}'", name), "a name that no other registered kernel has");
  }
}

void Orchestrator::unregister_kernel(std::string_view name) {
  std::unique_lock const lock{state_->mutex};
  auto const found = state_->kernels.find(name);
  if (found == state_->kernels.end()) throw state_->unknown(name);
  state_->kernels.erase(found);
}

bool Orchestrator::has_kernel(std::string_view name) const {
  std::shared_lock const lock{state_->mutex};
  return state_->kernels.contains(name);
}

Kernel Orchestrator::kernel(std::string_view name) const {
  std::shared_lock const lock{state_->mutex};
  auto const found = state_->kernels.find(name);
  if (found == state_->kernels.end()) throw state_->unknown(name);
  return found->second;
}

std::vector<std::string> Orchestrator::kernel_names() const {
  std::shared_lock const lock{state_->mutex};
  return state_->names();
}

Event Orchestrator::launch_list(std::string_view name, Range range, std::span<const LaunchArgument> arguments,
                                ExecutionOptions const& options) {
  auto const chosen = kernel(name);
  auto const choice = choose_device(chosen, arguments, options);
  return launch_kernel(queue_for(options, choice), chosen, range, arguments);
}

KernelExecution Orchestrator::execute_list(std::string_view name, Range range,
                                           std::span<const LaunchArgument> arguments, ExecutionOptions const& options) {
  auto const begin = std::chrono::steady_clock::now();
  auto const chosen = kernel(name);
  auto choice = choose_device(chosen, arguments, options);
  KernelExecution done;
  done.name = chosen.name();
  done.device = choice.device->id();
  done.reason = std::move(choice.reason);
  done.items = range.items();
  auto const buffers = buffers_of(arguments);
  auto const before = statistics_of(buffers);
  launch_kernel(queue_for(options, choice), chosen, range, arguments).wait();
  done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    auto const moved = buffers[i]->statistics().traffic_since(before[i]);
    done.bytes_moved += moved.bytes;
    done.copies += moved.copies;
  }
  return done;
}

}  // namespace unimem
