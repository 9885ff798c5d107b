#include "device/opencl/opencl_device.hpp"

#include <unimem/core/error.hpp>

#include "device/driver_stream.hpp"
#include "device/opencl/code.hpp"
#include "device/opencl/command_stream.hpp"
#include "device/opencl/first_run.hpp"
#include "device/opencl/link.hpp"
#include "device/opencl/opencl_program.hpp"
#include "device/opencl/opencl_queue.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace unimem::detail::opencl {
namespace {

ContextHandle context_of_its_own(Hardware const& hardware) {
  cl_context_properties const properties[] = {CL_CONTEXT_PLATFORM,
                                              reinterpret_cast<cl_context_properties>(hardware.platform), 0};
  cl_int code = CL_SUCCESS;
  ContextHandle context{*hardware.api,
                        hardware.api->clCreateContext(properties, 1, &hardware.device, nullptr, nullptr, &code)};
  check(code, "clCreateContext");
  return context;
}

template <class Value>
Value of_queue(Api const& api, cl_command_queue queue, cl_command_queue_info name) {
  Value value{};
  // NOLINTNEXTLINE(bugprone-sizeof-expression): what is asked for may be a handle
  check(api.clGetCommandQueueInfo(queue, name, sizeof(Value), static_cast<void*>(&value), nullptr),
        "clGetCommandQueueInfo");
  return value;
}

}  // namespace

OpenClDevice::OpenClDevice(std::string id, Hardware const& hardware, OpenClOptions options)
    : OpenClDevice(std::move(id), hardware, options, context_of_its_own(hardware)) {}

OpenClDevice::OpenClDevice(std::string id, Hardware hardware, OpenClOptions options, ContextHandle context)
    : Device(Backend::opencl, std::move(id)),
      hardware_(std::move(hardware)),
      options_(options),
      context_(std::move(context)) {
  info_ = hardware_.info;
  if (options_.shares && !hardware_.fine_grain_memory) {
    throw UnsupportedOperation("zero_copy=1", std::string(this->id()),
                               "the device has no fine-grained shared virtual memory");
  }
}

bool OpenClDevice::shares_by_default(Hardware const& hardware) noexcept {
  return hardware.info.is_gpu && hardware.info.integrated && hardware.fine_grain_memory;
}

MemoryInfo OpenClDevice::memory_info() const {
  auto const total = hardware_.budget->capacity();
  return {total - hardware_.budget->live(), total};
}

void OpenClDevice::refuse(std::size_t bytes, std::size_t limit, std::string reason) const {
  auto const live = hardware_.budget->live();
  auto const free = hardware_.budget->capacity() - live;
  throw OutOfMemory({.where = fmt::format("{} {}", id(), to_string(Location::device)),
                     .requested = bytes,
                     .limit = limit,
                     .live = live,
                     .largest_free = std::min(free, info_.max_allocation),
                     .device_free = free,
                     .holders = {},
                     .reason = std::move(reason)});
}

DeviceMemory OpenClDevice::allocate(std::size_t bytes, Location location) {
  if (location != Location::device && !(location == Location::unified && options_.shares)) {
    throw UnsupportedOperation(fmt::format("{} memory", to_string(location)), std::string(id()),
                               "OpenCL devices serve device memory, and unified memory where they share the host's");
  }
  if (bytes == 0) throw InvalidArgument("bytes", "0", "at least 1");
  if (bytes > info_.max_allocation) {
    refuse(bytes, info_.max_allocation, "larger than the driver's largest allocation");
  }
  if (!hardware_.budget->take(bytes)) refuse(bytes, hardware_.budget->capacity(), "limit reached");
  try {
    auto object = make_object(bytes);
    return {reinterpret_cast<std::uintptr_t>(object.detach()), 0, bytes};
  } catch (...) {
    hardware_.budget->give_back(bytes);
    throw;
  }
}

MemoryHandle OpenClDevice::make_object(std::size_t bytes) {
  void* shared = nullptr;
  cl_mem_flags flags = CL_MEM_READ_WRITE;
  if (options_.shares) {
    shared = api().clSVMAlloc(context(), CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, bytes, 0);
    if (shared == nullptr) refuse(bytes, hardware_.budget->capacity(), "clSVMAlloc returned no memory");
    flags |= CL_MEM_USE_HOST_PTR;
  }
  cl_int code = CL_SUCCESS;
  MemoryHandle object{api(), api().clCreateBuffer(context(), flags, bytes, shared, &code)};
  if (code == CL_SUCCESS) return object;
  if (shared != nullptr) api().clSVMFree(context(), shared);
  if (code == CL_MEM_OBJECT_ALLOCATION_FAILURE) {
    refuse(bytes, hardware_.budget->capacity(), fmt::format("clCreateBuffer: {}", code_name(code)));
  }
  check(code, "clCreateBuffer");
  return object;
}

void OpenClDevice::release(DeviceMemory memory, Location) noexcept {
  if (memory.object == 0) return;
  if (!driver_gone()) {
    auto* const shared = options_.shares ? shared_address(object_of(memory)) : nullptr;
    api().clReleaseMemObject(object_of(memory));
    if (shared != nullptr) api().clSVMFree(context(), shared);
  }
  hardware_.budget->give_back(memory.bytes);
}

void* OpenClDevice::shared_address(cl_mem object) const noexcept {
  void* result = nullptr;
  auto const code =
      api().clGetMemObjectInfo(object, CL_MEM_HOST_PTR, sizeof result, static_cast<void*>(&result), nullptr);
  return code == CL_SUCCESS ? result : nullptr;
}

void* OpenClDevice::address(DeviceMemory memory) {
  if (!options_.shares || memory.object == 0 || driver_gone()) return nullptr;
  auto* const base = static_cast<std::byte*>(shared_address(object_of(memory)));
  return base == nullptr ? nullptr : base + memory.offset;
}

std::shared_ptr<Program const> OpenClDevice::compile(ProgramSource const& source) {
  auto program = std::make_shared<OpenClProgram>(*this, source);
  // The compiler is loaded with the first program, and may have exit handlers of its own.
  std::call_once(compiler_loaded_, [this] {
    if (hardware_.loads_with_first_run) run_to_the_end_once(api(), context(), native_id());
    watch_process_end(&finish_all_streams);
  });
  return program;
}

LinkCost OpenClDevice::link_cost() const noexcept {
  std::call_once(link_measured_, [this] {
    if (!driver_gone()) link_ = measure_link(api(), context(), native_id());
  });
  return link_;
}

std::unique_ptr<QueueBackend> OpenClDevice::make_queue() {
  cl_int code = CL_SUCCESS;
  cl_command_queue_properties const properties = options_.profiles ? CL_QUEUE_PROFILING_ENABLE : 0;
  QueueHandle handle{api(), api().clCreateCommandQueue(context(), native_id(), properties, &code)};
  check(code, "clCreateCommandQueue");
  return queue_over(std::move(handle), options_.profiles);
}

Queue OpenClDevice::adopt(cl_command_queue foreign) {
  if (driver_gone()) throw UnsupportedOperation("adopt_queue", std::string(id()), process_end_reason);
  if (foreign == nullptr) throw InvalidArgument("queue", "null", "a cl_command_queue");
  if (of_queue<cl_context>(api(), foreign, CL_QUEUE_CONTEXT) != context()) {
    throw InvalidArgument("queue", "one of another context",
                          fmt::format("a queue of {}'s context (adopt_context takes that of a queue)", id()));
  }
  if (of_queue<cl_device_id>(api(), foreign, CL_QUEUE_DEVICE) != native_id()) {
    throw InvalidArgument("queue", "one of another device of the context", fmt::format("a queue of {}", id()));
  }
  auto const properties = of_queue<cl_command_queue_properties>(api(), foreign, CL_QUEUE_PROPERTIES);
  if ((properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0) {
    throw InvalidArgument("queue", "one that works out of order", "an in-order queue");
  }
  check(api().clRetainCommandQueue(foreign), "clRetainCommandQueue");
  return enlist(queue_over({api(), foreign}, (properties & CL_QUEUE_PROFILING_ENABLE) != 0));
}

std::unique_ptr<QueueBackend> OpenClDevice::queue_over(QueueHandle handle, bool profiles) {
  auto queue = std::make_unique<OpenClQueue>(*this, std::move(handle), profiles);
  std::lock_guard const lock{streams_mutex_};
  std::erase_if(streams_, [](auto const& entry) { return entry.second.expired(); });
  streams_.emplace(queue->control().id(), queue->stream());
  return queue;
}

std::shared_ptr<CommandStream> OpenClDevice::stream(std::uint64_t queue_id) {
  std::lock_guard const lock{streams_mutex_};
  auto const found = streams_.find(queue_id);
  return found == streams_.end() ? nullptr : found->second.lock();
}

}  // namespace unimem::detail::opencl
