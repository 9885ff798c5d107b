#pragma once

#include "core/disk_cache.hpp"

#include <cstdint>
#include <filesystem>
#include <utility>

namespace unimem::detail::cuda {

/// Compiled kernels on disk: at most so many bytes, and by default the user's own.
class KernelCache : public DiskCache {
 public:
  static constexpr std::uintmax_t default_limit = std::uintmax_t{256} << 20;

  /// Keeps nothing and finds nothing.
  KernelCache() = default;

  explicit KernelCache(std::filesystem::path directory, std::uintmax_t limit = default_limit)
      : DiskCache(std::move(directory), "kernel", limit) {}

  /// In the user's cache; one that keeps nothing where there is none.
  [[nodiscard]] static KernelCache of_user() { return KernelCache{user_cache_directory("cuda")}; }
};

}  // namespace unimem::detail::cuda
