#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace unimem::detail::cuda {

/// Compiled kernels on disk, from one process to the next. It may lose anything at any time and is never wrong: an
/// entry holds the whole text it was made from, which is compared, and a checksum; what does not fit is as good as not
/// there, and is written anew. That it cannot be written is no error: compiling again costs time and nothing else.
///
/// Several processes may use one directory. An entry appears whole, by being renamed, or not at all.
class KernelCache {
 public:
  static constexpr std::uintmax_t default_limit = std::uintmax_t{256} << 20;

  /// Keeps nothing and finds nothing.
  KernelCache() = default;

  /// Keeps at most `limit` bytes in files of their own in `directory`, which is made when the first is kept. What was
  /// used longest ago goes first.
  explicit KernelCache(std::filesystem::path directory, std::uintmax_t limit = default_limit);

  /// The user's cache: `UNIMEM_CACHE_DIR`, else unimem in `XDG_CACHE_HOME`, else .cache/unimem in `HOME`; one that
  /// keeps nothing where none of these is set.
  [[nodiscard]] static KernelCache of_user();

  /// What was kept under `key`, and is now the newest.
  [[nodiscard]] std::optional<std::string> find(std::string_view key) const noexcept;

  /// Keeps `value` under `key`, in place of what was there.
  void keep(std::string_view key, std::string_view value) const noexcept;

  /// Where `key` is kept. For tests that damage it.
  [[nodiscard]] std::filesystem::path file_of(std::string_view key) const;

 private:
  void make_room() const;

  std::filesystem::path directory_;  ///< empty: keeps nothing
  std::uintmax_t limit_ = 0;
};

}  // namespace unimem::detail::cuda
