#include "device/cuda/nvrtc.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace unimem::detail::cuda {
namespace {

constexpr int oldest_major = 12;
constexpr int newest_major = 13;

/// File names in the order of preference. The plain name is what a toolkit's folder links to whatever it has.
std::vector<std::string> file_names(int driver_version) {
  auto const own = std::clamp(driver_version / 1000, oldest_major, newest_major);
  std::vector<std::string> names;
  for (int major = own; major >= oldest_major; --major) names.push_back(fmt::format("libnvrtc.so.{}", major));
  for (int major = own + 1; major <= newest_major; ++major) names.push_back(fmt::format("libnvrtc.so.{}", major));
  names.emplace_back("libnvrtc.so");
  return names;
}

std::vector<int> supported_architectures(Nvrtc const& nvrtc) {
  int count = 0;
  check(nvrtc, nvrtc.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> result(static_cast<std::size_t>(std::max(count, 0)));
  if (!result.empty()) check(nvrtc, nvrtc.nvrtcGetSupportedArchs(result.data()), "nvrtcGetSupportedArchs");
  std::ranges::sort(result);
  return result;
}

LoadedNvrtc load_from(void* handle) {
  LoadedNvrtc loaded;
  auto& nvrtc = loaded.nvrtc;
#define UNIMEM_LOAD(function, ...)                                                       \
  nvrtc.function = reinterpret_cast<decltype(nvrtc.function)>(dlsym(handle, #function)); \
  if (nvrtc.function == nullptr && loaded.problem.empty())                               \
    loaded.problem = "the NVRTC that was found has no " #function;
  UNIMEM_NVRTC_FUNCTIONS(UNIMEM_LOAD)
  UNIMEM_LOAD(nvrtcGetErrorString)
#undef UNIMEM_LOAD
  if (!loaded.problem.empty()) return loaded;
  try {
    int major = 0, minor = 0;
    check(nvrtc, nvrtc.nvrtcVersion(&major, &minor), "nvrtcVersion");
    loaded.version = 1000 * major + 10 * minor;
    loaded.architectures = supported_architectures(nvrtc);
    if (loaded.architectures.empty()) loaded.problem = "the NVRTC that was found makes code for no architecture";
  } catch (DeviceError const& error) {
    loaded.problem = error.what();
  }
  return loaded;
}

LoadedNvrtc without_one(std::string problem) {
  LoadedNvrtc none;
  none.problem = std::move(problem);
  return none;
}

}  // namespace

std::vector<std::string> toolkit_folders() {
  std::vector<std::string> result;
  auto const add = [&](std::string const& root) {
    for (auto const* const libraries : {"/lib64/", "/lib/"}) result.push_back(root + libraries);
  };
  for (auto const* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (auto const root = environment(variable)) add(*root);
  }
  result.emplace_back();
  add("/usr/local/cuda");
  add("/opt/cuda");
  return result;
}

LoadedNvrtc load_nvrtc(int driver_version, std::vector<std::string> folders, int architecture) {
  if (auto const chosen = environment("UNIMEM_NVRTC_LIBRARY")) {
    if (auto* const handle = dlopen(chosen->c_str(), RTLD_NOW | RTLD_LOCAL)) return load_from(handle);
    return without_one(fmt::format("UNIMEM_NVRTC_LIBRARY cannot be loaded: {}", dlerror()));
  }
  auto const names = file_names(driver_version);
  std::optional<LoadedNvrtc> first;
  for (auto const& name : names) {
    for (auto const& folder : folders) {
      auto* const handle = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle == nullptr) continue;
      auto loaded = load_from(handle);
      if (loaded.serves(architecture)) return loaded;
      if (!first) first = std::move(loaded);
    }
  }
  if (first) return *std::move(first);
  std::ranges::replace(folders, std::string{}, std::string{"the loader's search path"});
  return without_one(
      fmt::format("CUDA's run-time compiler is not installed: no {} in {} (UNIMEM_NVRTC_LIBRARY names another place)",
                  fmt::join(names, ", "), fmt::join(folders, ", ")));
}

std::string code_name(Nvrtc const& nvrtc, NvrtcResult code) {
  auto const* const name = nvrtc.nvrtcGetErrorString(code);
  return name != nullptr ? name : fmt::format("an unknown error ({})", static_cast<int>(code));
}

void check(Nvrtc const& nvrtc, NvrtcResult code, char const* call) {
  if (code == NvrtcResult::success) return;
  throw DeviceError("cuda", call, static_cast<std::int64_t>(code), code_name(nvrtc, code));
}

}  // namespace unimem::detail::cuda
