#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace unimem {

/// A folder of its own for one test, removed at the end, which an ordinary user may write to as well.
class Sandbox {
 public:
  Sandbox();
  Sandbox(Sandbox const&) = delete;
  Sandbox& operator=(Sandbox const&) = delete;
  ~Sandbox();

  [[nodiscard]] std::filesystem::path const& path() const noexcept { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  /// Writes a file, and gives its path.
  std::filesystem::path write(std::string_view name, std::string_view contents) const;

  /// Makes a file of `bytes` zeros that takes no room on the disk.
  std::filesystem::path write_hole(std::string_view name, std::size_t bytes) const;

  [[nodiscard]] std::string read(std::string_view name) const;

  /// Everything below, by relative path: the contents of small files, the size of large ones, the kind of all else. Two
  /// equal snapshots: nothing was added, removed or changed.
  [[nodiscard]] std::map<std::string, std::string> snapshot() const;

 private:
  std::filesystem::path path_;
};

}  // namespace unimem
