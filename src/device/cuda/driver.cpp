#include "device/cuda/driver.hpp"

#include <unimem/core/detail/environment.hpp>

#include <dlfcn.h>
#include <fmt/format.h>

namespace unimem::detail::cuda {
namespace {

/// The entry every other one comes from. It gives the form of a function that a version of the API has, whatever the
/// library exports under which suffix.
using GetProcAddress = Result (*)(char const* symbol, void** function, int version, std::uint64_t flags, int* status);

std::string spelled(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

LoadedDriver load_driver() {
  LoadedDriver loaded;
  auto const library = environment("UNIMEM_CUDA_LIBRARY").value_or("libcuda.so.1");
  auto* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    auto const* const why = dlerror();
    loaded.problem = fmt::format("the CUDA driver cannot be loaded: {}", why != nullptr ? why : library.c_str());
    return loaded;
  }
  auto const get = reinterpret_cast<GetProcAddress>(dlsym(handle, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    loaded.problem = fmt::format("the CUDA driver is older than {}: it has no cuGetProcAddress_v2", spelled(12000));
    return loaded;
  }
  // The stub library of a toolkit says success and gives nothing: only the address itself counts.
  auto const find = [&](char const* name, int version) {
    void* function = nullptr;
    int status = 0;
    return get(name, &function, version, 0, &status) == Result::success ? function : nullptr;
  };
  auto& driver = loaded.driver;
#define UNIMEM_LOAD(function, version, ...)                                                \
  driver.function = reinterpret_cast<decltype(driver.function)>(find(#function, version)); \
  if (driver.function == nullptr && loaded.problem.empty())                                \
    loaded.problem = fmt::format("the CUDA driver has no {} of {}", #function, spelled(version));
  UNIMEM_CUDA_FUNCTIONS(UNIMEM_LOAD)
#undef UNIMEM_LOAD
#define UNIMEM_LOAD(function, version, ...) \
  driver.function = reinterpret_cast<decltype(driver.function)>(find(#function, version));
  UNIMEM_CUDA_LATER_FUNCTIONS(UNIMEM_LOAD)
#undef UNIMEM_LOAD
  if (driver.cuDriverGetVersion != nullptr && driver.cuDriverGetVersion(&loaded.version) == Result::success &&
      loaded.version < oldest_driver) {
    loaded.problem = fmt::format("the CUDA driver is of version {}, and {} is the oldest that is served",
                                 spelled(loaded.version), spelled(oldest_driver));
  }
  if (!loaded.problem.empty()) return loaded;
  if (auto const result = driver.cuInit(0); result != Result::success) {
    char const* name = nullptr;
    static_cast<void>(driver.cuGetErrorName(result, &name));
    loaded.problem = fmt::format("cuInit failed with {} ({})", name != nullptr ? name : "an error without a name",
                                 static_cast<int>(result));
  }
  return loaded;
}

}  // namespace unimem::detail::cuda
