#include "device/cuda_standin/modules.hpp"

#include "device/cuda_standin/capture.hpp"
#include "device/cuda_standin/streams.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace unimem::standin {
namespace {

constexpr char signature[] = {'U', 'M', 'K', 'E', 'R', 'N', 'E', 'L'};

/// The shared object inside an image, in a file of its own.
int unpack(void const* image) {
  auto const* const bytes = static_cast<unsigned char const*>(image);
  // Not memcmp: what is no image may be shorter than the signature.
  require(std::equal(std::begin(signature), std::end(signature), bytes), Result::invalid_image);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes + sizeof signature, sizeof size);
  auto const* content = bytes + sizeof signature + sizeof size;
  auto const file = memfd_create("unimem-standin-module", MFD_CLOEXEC);
  require(file >= 0, Result::out_of_memory);
  while (size > 0) {
    auto const written = write(file, content, size);
    if (written <= 0) {
      close(file);
      refuse(Result::out_of_memory);
    }
    content += written;
    size -= static_cast<std::uint64_t>(written);
  }
  return file;
}

/// Whether the module's code is still needed, or a command of it queued.
bool has_pending_kernels(ModuleState const& module) {
  for (auto const& stream : machine().working) {
    for (auto const& command : stream->commands)
      if (command.module.get() == &module) return true;
  }
  return false;
}

std::shared_ptr<FunctionState> function_of(Function handle) {
  auto const context = current();
  auto function = machine().functions.at(handle);
  require(function->module->context == context, Result::invalid_handle);
  return function;
}

}  // namespace

ModuleState::~ModuleState() {
  if (library != nullptr) dlclose(library);
  if (file >= 0) close(file);
}

namespace calls {

Result cuModuleLoadData(Lock& lock, Module* module, void const* image) {
  auto const context = current();
  refuse_during_capture();
  require(module != nullptr && image != nullptr);
  // CUDA Programming Guide, "Lazy Loading": to load a kernel may take a synchronization of the context; an H100 waits.
  wait_implicitly(lock, *context);
  auto state = std::make_shared<ModuleState>();
  state->context = context;
  state->file = unpack(image);
  lock.unlock();  // the library's constructors are not ours
  state->library = dlopen(("/proc/self/fd/" + std::to_string(state->file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  lock.lock();
  require(state->library != nullptr, Result::invalid_image);
  auto const* const count = static_cast<unsigned const*>(dlsym(state->library, "unimem_standin_kernel_count"));
  state->kernels = static_cast<StandInKernel const*>(dlsym(state->library, "unimem_standin_kernels"));
  require(count != nullptr && state->kernels != nullptr, Result::invalid_image);
  state->count = *count;
  *module = machine().modules.add(std::move(state));
  return Result::success;
}

Result cuModuleUnload(Lock& lock, Module module) {
  auto const context = current_even_if_lost();
  if (context->error == Result::success) refuse_during_capture();
  auto const state = machine().modules.at(module);
  require(state->context == context, Result::invalid_handle);
  if (context->breaking == Result::success && has_pending_kernels(*state))
    violation("cuModuleUnload of a module whose kernels are still queued or running");
  machine().functions.erase_if([&](FunctionState const& function) { return function.module == state; });
  machine().modules.erase(module);
  wait_implicitly(lock, *context);  // seen on an H100 (docs/gpu-results.md)
  return context->error;
}

Result cuModuleGetFunction(Lock& /*lock*/, Function* function, Module module, char const* name) {
  auto const context = current();
  require(function != nullptr && name != nullptr);
  auto const state = machine().modules.at(module);
  require(state->context == context, Result::invalid_handle);
  if (auto const known = state->handles.find(name); known != state->handles.end()) {
    *function = known->second;
    return Result::success;
  }
  auto const* const end = state->kernels + state->count;
  auto const* const kernel =
      std::find_if(state->kernels, end, [&](StandInKernel const& each) { return std::strcmp(each.name, name) == 0; });
  require(kernel != end, Result::not_found);
  auto found = std::make_shared<FunctionState>();
  found->module = state;
  found->kernel = kernel;
  *function = machine().functions.add(std::move(found));
  state->handles.emplace(name, *function);
  return Result::success;
}

Result cuFuncGetParamInfo(Lock& /*lock*/, Function function, std::size_t index, std::size_t* offset,
                          std::size_t* bytes) {
  auto const state = function_of(function);
  require(offset != nullptr && index < state->kernel->parameter_count);
  *offset = state->kernel->parameter_offsets[index];
  if (bytes != nullptr) *bytes = state->kernel->parameter_bytes[index];
  return Result::success;
}

Result cuFuncGetAttribute(Lock& /*lock*/, int* value, FunctionAttribute attribute, Function function) {
  require(value != nullptr && attribute == FunctionAttribute::max_threads_per_block);
  static_cast<void>(function_of(function));
  *value = 1024;
  return Result::success;
}

Result cuOccupancyMaxPotentialBlockSize(Lock& /*lock*/, int* grid, int* block, Function function,
                                        std::size_t (*shared_bytes)(int block), std::size_t /*dynamic_shared_bytes*/,
                                        int block_limit) {
  require(grid != nullptr && block != nullptr && block_limit >= 0);
  static_cast<void>(function_of(function));
  constexpr int sensible = 256, multiprocessors = 132, blocks_on_each = 8;
  *block = block_limit == 0 ? sensible : std::min(sensible, block_limit);
  if (shared_bytes != nullptr) static_cast<void>(shared_bytes(*block));
  *grid = multiprocessors * blocks_on_each;
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
