#include "device/opencl/api.hpp"

#include <unimem/core/detail/environment.hpp>

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>

namespace unimem::detail::opencl {
namespace {

/// What the serialized tables call through, and the lock they share.
struct Serial {
  std::mutex mutex;
  Api api;
};

Serial& serial() {
  static auto& instance = *new Serial;  // never destroyed: releases may come late in the exit of the process
  return instance;
}

template <auto entry, class Function>
struct Serialized;

template <auto entry, class Result, class... Arguments>
struct Serialized<entry, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    std::lock_guard const lock{serial().mutex};
    return (serial().api.*entry)(arguments...);
  }
};

}  // namespace

LoadedApi load_api() {
  LoadedApi loaded;
  auto const library = environment("UNIMEM_OPENCL_LIBRARY").value_or("libOpenCL.so.1");
  auto* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    auto const* const why = dlerror();
    loaded.problem = fmt::format("the OpenCL loader cannot be loaded: {}", why != nullptr ? why : library.c_str());
    return loaded;
  }
#define UNIMEM_LOAD(function) \
  loaded.api.function = reinterpret_cast<decltype(loaded.api.function)>(dlsym(handle, #function));
#define UNIMEM_LOAD_REQUIRED(function) \
  UNIMEM_LOAD(function)                \
  if (loaded.api.function == nullptr) loaded.problem = fmt::format("{} has no {}", library, #function);
  UNIMEM_OPENCL_FUNCTIONS(UNIMEM_LOAD_REQUIRED)
  UNIMEM_OPENCL_2_FUNCTIONS(UNIMEM_LOAD)
#undef UNIMEM_LOAD_REQUIRED
#undef UNIMEM_LOAD
  return loaded;
}

Api serialized(Api const& api) {
  {
    std::lock_guard const lock{serial().mutex};
    serial().api = api;
  }
  Api result;
#define UNIMEM_WRAP(function) \
  if (api.function != nullptr) result.function = &Serialized<&Api::function, decltype(Api::function)>::call;
  UNIMEM_OPENCL_FUNCTIONS(UNIMEM_WRAP)
  UNIMEM_OPENCL_2_FUNCTIONS(UNIMEM_WRAP)
#undef UNIMEM_WRAP
  return result;
}

}  // namespace unimem::detail::opencl
