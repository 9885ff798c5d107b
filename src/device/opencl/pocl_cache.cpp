#include "device/opencl/pocl_cache.hpp"

#include "core/own_files.hpp"

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
  auto problem =
      directory.empty() ? std::make_error_code(std::errc::no_such_file_or_directory) : make_own_folders(directory);
  // PoCL runs what it finds there.
  if (!problem) static_cast<void>(open_own_folder(directory, problem));
  if (problem && problem.category() == make_error_code(Disbelief::link).category()) {
    return fmt::format(
        "PoCL's kernel cache '{}' holds code that is not believed: {} (POCL_CACHE_DIR names another place)",
        directory.string(), problem.message());
  }
  if (!problem && access(directory.c_str(), W_OK | X_OK) != 0) problem = {errno, std::generic_category()};
  if (!problem) return std::nullopt;
  return fmt::format("PoCL cannot write its kernel cache '{}': {} (POCL_CACHE_DIR names another place)",
                     directory.string(), problem.message());
}

}  // namespace unimem::detail::opencl
