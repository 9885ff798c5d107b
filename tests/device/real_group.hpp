#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace unimem {

/// A control group of this machine's own with a limit of memory, if it lets one be made below that of this process.
class RealGroup {
 public:
  explicit RealGroup(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {
    std::ifstream lines{"/proc/self/cgroup"};
    for (std::string line; std::getline(lines, line);) {
      auto const first = line.find(":memory:");
      if (first != std::string::npos) {
        make(std::filesystem::path{"/sys/fs/cgroup/memory"} / line.substr(first + 9), "memory.limit_in_bytes");
      } else if (line.starts_with("0::/") && directory_.empty()) {
        make(std::filesystem::path{"/sys/fs/cgroup"} / line.substr(4), "memory.max");
      }
      if (!directory_.empty()) return;
    }
    if (problem_.empty()) problem_ = "no hierarchy with a memory controller";
  }
  RealGroup(RealGroup const&) = delete;
  RealGroup& operator=(RealGroup const&) = delete;
  ~RealGroup() {
    if (!directory_.empty()) ::rmdir(directory_.c_str());
  }

  /// Why there is none; empty if there is one.
  [[nodiscard]] std::string const& problem() const noexcept { return problem_; }
  [[nodiscard]] std::filesystem::path const& directory() const noexcept { return directory_; }

  /// The calling process goes in.
  [[nodiscard]] bool enter() const { return write(directory_ / "cgroup.procs", std::to_string(::getpid())); }

 private:
  static bool write(std::filesystem::path const& path, std::string const& text) {
    std::ofstream out{path};
    out << text << std::flush;
    return static_cast<bool>(out);
  }

  void make(std::filesystem::path const& above, char const* limit_file) {
    auto const directory = above / ("unimem_test_" + std::to_string(::getpid()));
    if (::mkdir(directory.c_str(), 0755) != 0) {
      problem_ = directory.string() + ": " + std::strerror(errno);
    } else if (!std::filesystem::exists(directory / limit_file) ||
               !write(directory / limit_file, std::to_string(limit_bytes_))) {
      problem_ = directory.string() + ": no limit can be set";
      ::rmdir(directory.c_str());
    } else {
      directory_ = directory;
      problem_.clear();
    }
  }

  std::size_t limit_bytes_;
  std::filesystem::path directory_;
  std::string problem_;
};

}  // namespace unimem
