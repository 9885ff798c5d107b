#include "device/cuda_standin/events.hpp"
#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/modules.hpp"
#include "device/cuda_standin/streams.hpp"

// Primary contexts, counted, and each thread's stack of current ones.

namespace unimem::standin {
namespace {

std::string counted(std::size_t count, char const* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::vector<std::shared_ptr<Allocation>> allocations_of(std::shared_ptr<ContextState> const& context) {
  std::vector<std::shared_ptr<Allocation>> all;
  for (auto const& [base, allocation] : machine().memory)
    if (allocation->context.lock() == context) all.push_back(allocation);
  return all;
}

}  // namespace

void end_context(DeviceState& device, bool by_its_owner) {
  auto& all = machine();
  auto const context = std::exchange(device.primary, nullptr);
  auto const healthy = context->breaking == Result::success;
  std::size_t pending = 0;
  for (auto const& stream : all.working)
    if (stream->context == context) pending += stream->commands.size();
  auto const of_context = [&](auto const& state) { return state.context == context; };
  for (auto const& [handle, stream] : all.streams)
    if (of_context(*stream)) retire(*stream);
  auto const streams = all.streams.erase_if(of_context);
  auto const events = all.events.erase_if(of_context);
  auto const modules = all.modules.erase_if(of_context);
  all.functions.erase_if([&](FunctionState const& function) { return function.module->context == context; });
  auto const allocations = allocations_of(context);
  // To leave this to the driver is legal, and hides a leak.
  if (by_its_owner && healthy && pending + streams + events + modules + allocations.size() > 0) {
    violation("the context of device " + std::to_string(context->device) + " ended with " +
              counted(pending, "pending command") + ", " + counted(streams, "stream") + ", " +
              counted(events, "event") + ", " + counted(modules, "module") + ", " +
              counted(allocations.size(), "allocation"));
  }
  context->destroyed = true;
  lose(*context, Result::context_is_destroyed);
  for (auto const& allocation : allocations) forget_allocation(allocation, nullptr);
  retire(*context->legacy);
  for (auto const& [thread, stream] : context->own_streams) retire(*stream);
  context->legacy = nullptr;  // they hold the context
  context->own_streams.clear();
  all.contexts.erase(context->handle);
}

namespace calls {

Result cuDevicePrimaryCtxRetain(Lock& /*lock*/, Context* context, Device device) {
  require(context != nullptr);
  auto& owner = machine().device(device);
  require(attribute_of(owner, DeviceAttribute::compute_mode) != static_cast<int>(ComputeMode::prohibited),
          Result::device_unavailable);
  if (owner.primary == nullptr) {
    owner.primary = std::make_shared<ContextState>();
    owner.primary->device = device;
    owner.primary->legacy = make_stream(owner.primary, true);
    owner.primary->legacy->legacy = true;
    owner.primary->handle = machine().contexts.add(owner.primary);
  }
  ++owner.primary->retained;
  *context = owner.primary->handle;
  return Result::success;
}

Result cuDevicePrimaryCtxRelease(Lock& /*lock*/, Device device) {
  auto& owner = machine().device(device);
  require(owner.primary != nullptr, Result::invalid_context);
  if (--owner.primary->retained == 0) end_context(owner, true);
  return Result::success;
}

Result cuDevicePrimaryCtxGetState(Lock& /*lock*/, Device device, unsigned* flags, int* active) {
  require(flags != nullptr && active != nullptr);
  *flags = 0;
  *active = machine().device(device).primary != nullptr ? 1 : 0;
  return Result::success;
}

Result cuCtxGetCurrent(Lock& /*lock*/, Context* context) {
  require(context != nullptr);
  auto const& stack = context_stack();
  *context = stack.empty() ? nullptr : stack.back()->handle;
  return Result::success;
}

Result cuCtxPushCurrent(Lock& /*lock*/, Context context) {
  context_stack().push_back(machine().contexts.at(context, Result::invalid_context));
  return Result::success;
}

Result cuCtxPopCurrent(Lock& /*lock*/, Context* context) {
  auto& stack = context_stack();
  require(!stack.empty(), Result::invalid_context);
  if (context != nullptr) *context = stack.back()->handle;
  stack.pop_back();
  return Result::success;
}

Result cuCtxEnablePeerAccess(Lock& /*lock*/, Context peer, unsigned flags) {
  require(flags == 0);
  auto const context = current();
  auto const other = machine().contexts.at(peer, Result::invalid_context);
  require(other != context, Result::invalid_device);
  auto const& device = machine().device(context->device);
  require(!device.unreachable.contains(other->device), Result::peer_access_unsupported);
  require(context->peers.insert(other->device).second, Result::peer_access_already_enabled);
  return Result::success;
}

Result cuMemGetInfo(Lock& /*lock*/, std::size_t* free_bytes, std::size_t* total_bytes) {
  require(free_bytes != nullptr && total_bytes != nullptr);
  auto const& device = machine().device(current()->device);
  *free_bytes = device.room();
  *total_bytes = device.capacity;
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
