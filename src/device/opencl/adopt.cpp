#include <unimem/core/error.hpp>
#include <unimem/device/opencl.hpp>

#include "core/fork_locks.hpp"
#include "device/backends.hpp"
#include "device/opencl/code.hpp"
#include "device/opencl/opencl_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using detail::opencl::check;
using detail::opencl::ContextHandle;
using detail::opencl::OpenClDevice;

/// The devices over contexts of the user's. A context that is in here is retained, so that its handle is no other's.
struct Adopted {
  detail::ForkableMutex mutex;
  std::map<std::pair<cl_context, cl_device_id>, Device*> all;
  std::size_t count = 0;  ///< of the ids that were given
};

Adopted& adopted() {
  static auto& instance = *new Adopted;  // as immortal as the devices
  return instance;
}

/// Where among the devices that were found the hardware is. Throws InvalidArgument if it is none of them.
std::size_t index_of(detail::FoundDevices const& found, cl_device_id hardware) {
  auto const at = std::ranges::find_if(found.devices, [&](auto const& one) {
    auto const* const opencl = dynamic_cast<OpenClDevice const*>(one.get());
    return opencl != nullptr && opencl->native_id() == hardware;
  });
  if (at != found.devices.end()) return static_cast<std::size_t>(at - found.devices.begin());
  throw InvalidArgument("device", fmt::format("cl_device_id {}", static_cast<void*>(hardware)),
                        found.reason.empty() ? "that of a device in devices()" : found.reason);
}

std::vector<cl_device_id> devices_of(detail::opencl::Api const& api, cl_context context) {
  constexpr auto call = "clGetContextInfo";
  std::size_t bytes = 0;
  check(api.clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, nullptr, &bytes), call);
  std::vector<cl_device_id> all(bytes / sizeof(cl_device_id));
  check(api.clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, static_cast<void*>(all.data()), nullptr), call);
  return all;
}

}  // namespace

Device& adopt_context(void* context, void* device) {
  if (context == nullptr) throw InvalidArgument("context", "null", "a cl_context");
  if (device == nullptr) throw InvalidArgument("device", "null", "a cl_device_id");
  auto* const theirs = static_cast<cl_context>(context);
  auto* const hardware = static_cast<cl_device_id>(device);
  if (detail::driver_gone()) {
    throw UnsupportedOperation("adopt_context", "OpenCL", detail::process_end_reason);
  }
  auto const& found = detail::found_devices(Backend::opencl);
  auto const index = index_of(found, hardware);
  auto const& ours = static_cast<OpenClDevice const&>(*found.devices[index]);
  if (std::ranges::count(devices_of(ours.api(), theirs), hardware) == 0) {
    throw InvalidArgument("context", "one without that device", fmt::format("a context with {}", ours.id()));
  }
  auto& [mutex, all, count] = adopted();
  if (!mutex.lock()) detail::throw_inherited("adopting a context");
  std::lock_guard const lock{mutex, std::adopt_lock};
  auto& known = all[{theirs, hardware}];
  if (known == nullptr) {
    auto const options = fmt::format("context={}", ++count);
    check(ours.api().clRetainContext(theirs), "clRetainContext");
    ContextHandle reference{ours.api(), theirs};
    auto made = std::make_unique<OpenClDevice>(fmt::format("{},{}", ours.id(), options), ours.hardware(),
                                               ours.options(), std::move(reference));
    known = &detail::keep_device(index, options, std::move(made));
  }
  return *known;
}

Queue adopt_queue(Device& device, void* queue) {
  auto* const ours = dynamic_cast<OpenClDevice*>(&device);
  if (ours == nullptr) {
    throw UnsupportedOperation("adopt_queue", std::string(device.id()), "it is not an OpenCL device");
  }
  return ours->adopt(static_cast<cl_command_queue>(queue));
}

}  // namespace unimem
