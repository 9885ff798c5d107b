#include "device/opencl/pocl_cache.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace unimem::detail::opencl {
namespace {

std::filesystem::path cache_directory() {
  // PoCL tells set-but-empty from unset for the first and the last of these, so `environment()` will not do.
  if (auto const* const chosen = ::secure_getenv("POCL_CACHE_DIR")) return chosen;
  bool const keeps = [] {
    auto const* const option = ::secure_getenv("POCL_KERNEL_CACHE");
    return option == nullptr || *option != '0';
  }();
  auto const* const leaf = keeps ? "pocl/kcache" : "pocl/uncached";
  if (auto const* const caches = ::secure_getenv("XDG_CACHE_HOME"); caches != nullptr && *caches != '\0') {
    return std::filesystem::path{caches} / leaf;
  }
  if (auto const* const home = ::secure_getenv("HOME")) return std::filesystem::path{home} / ".cache" / leaf;
  return std::filesystem::path{"/tmp"} / leaf;
}

}  // namespace

std::optional<std::string> pocl_cache_problem() {
  auto const directory = cache_directory();
  std::error_code problem;
  if (directory.empty()) {
    problem = std::make_error_code(std::errc::no_such_file_or_directory);
  } else {
    std::filesystem::create_directories(directory, problem);
    if (!problem && access(directory.c_str(), W_OK | X_OK) != 0) problem = {errno, std::generic_category()};
  }
  if (!problem) return std::nullopt;
  return fmt::format("PoCL cannot write its kernel cache '{}': {} (POCL_CACHE_DIR names another place)",
                     directory.string(), problem.message());
}

}  // namespace unimem::detail::opencl
