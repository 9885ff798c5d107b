#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace unimem::detail {

/// Where the user keeps what this library would otherwise find out anew: `leaf` in `UNIMEM_CACHE_DIR`, else in unimem
/// in `XDG_CACHE_HOME`, else in .cache/unimem in `HOME`; an empty path where none of these is set.
[[nodiscard]] std::filesystem::path user_cache_directory(std::string_view leaf);

/// Values on disk, from one process to the next. It may lose anything at any time and is never wrong: an entry holds
/// the whole key, which is compared, and a checksum; what does not fit is as good as not there, and is written anew.
/// That it cannot be written is no error: finding out again costs time and nothing else.
///
/// Only what this user alone can have written is believed: the directory and the entry are his, by the effective user
/// id, and neither their group nor others may write to them (`why_not_believed`). In a directory that is not, nothing
/// is found and nothing is kept. Links are not followed, be they in place of an entry or of the directory.
///
/// Several processes may use one directory, also from different containers. An entry appears whole, by being renamed,
/// or not at all. Entries, and directories that have to be made, are for the user alone.
class DiskCache {
 public:
  /// Keeps nothing and finds nothing.
  DiskCache() = default;

  /// Keeps at most `limit` bytes, keys and headings included, in files of their own in `directory`, which is made when
  /// the first is kept. What was used longest ago goes first. `kind` is one word for what the values are: the ending of
  /// the files, and in them, so that other files are not taken for entries. An empty directory keeps nothing.
  DiskCache(std::filesystem::path directory, std::string_view kind, std::uintmax_t limit);

  /// What was kept under `key`, and is now the newest. `damaged`, if given, says whether a file is in its place that is
  /// no entry, or not a whole one.
  [[nodiscard]] std::optional<std::string> find(std::string_view key, bool* damaged = nullptr) const noexcept;

  /// Keeps `value` under `key`, in place of what was there. Returns why it could not, if it could not; that it keeps
  /// nothing at all, or nothing so large, is no such reason.
  std::error_code keep(std::string_view key, std::string_view value) const noexcept;

  /// Where `key` is kept. For messages, and for tests that damage it.
  [[nodiscard]] std::filesystem::path file_of(std::string_view key) const;

 private:
  [[nodiscard]] std::string name_of(std::string_view key) const;

  std::filesystem::path directory_;  ///< empty: keeps nothing
  std::string heading_;              ///< every entry's first line
  std::string ending_;
  std::uintmax_t limit_ = 0;
};

}  // namespace unimem::detail
