#pragma once

#include "fuzz/target.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace unimem::fuzz {

/// A folder of the process's own, in memory where the system has such.
inline std::filesystem::path const& own_folder() {
  static std::filesystem::path const folder = [] {
    std::string name = (std::filesystem::is_directory("/dev/shm") ? std::string("/dev/shm") : std::string("/tmp")) +
                       "/unimem-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder: " + name);
    static std::string const kept = name;
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(kept, ignored);
    });
    return std::filesystem::path(name);
  }();
  return folder;
}

inline void write_file(std::filesystem::path const& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace unimem::fuzz
