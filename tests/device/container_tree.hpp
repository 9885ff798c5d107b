#pragma once

#include "device/temporary_folder.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace unimem {

/// Control groups that are files of a test: what the kernel would show of a container's.
class ContainerTree {
 public:
  [[nodiscard]] std::filesystem::path groups() const { return folder_ / "groups"; }
  [[nodiscard]] std::filesystem::path membership() const { return folder_ / "membership"; }

  /// What /proc/self/cgroup says.
  void belong_to(std::string const& lines) const { write(membership(), lines); }

  /// A group of version 1 or 2, by the path that the kernel gives it; `files` are cached ones, part of what is used.
  void add_first(std::string const& path, std::string const& limit, std::uint64_t used, std::uint64_t files = 0) const {
    auto const directory = groups() / "memory" / path;
    write(directory / "memory.limit_in_bytes", limit + '\n');
    write(directory / "memory.usage_in_bytes", std::to_string(used) + '\n');
    write(directory / "memory.stat", "cache 17\ninactive_file 1\ntotal_inactive_file " + std::to_string(files / 2) +
                                         "\ntotal_active_file " + std::to_string(files - files / 2) + '\n');
  }
  void add_second(std::string const& path, std::string const& limit, std::uint64_t used,
                  std::uint64_t files = 0) const {
    auto const directory = groups() / path;
    write(directory / "memory.max", limit + '\n');
    write(directory / "memory.current", std::to_string(used) + '\n');
    write(directory / "memory.stat", "anon 17\ninactive_file " + std::to_string(files / 2) + "\nactive_file " +
                                         std::to_string(files - files / 2) + "\nactive_anon 3\n");
  }

 private:
  static void write(std::filesystem::path const& path, std::string const& content) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }

  TemporaryFolder folder_;
};

}  // namespace unimem
