#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

namespace unimem {

/// A disk of some bytes in a folder that is made for it, in a mount namespace of the test program's own: of the thread
/// that makes it, and of those that it starts afterwards.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path path, std::size_t bytes) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    auto const size = "size=" + std::to_string(bytes);
    mounted_ = ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               ::mount("tmpfs", path_.c_str(), "tmpfs", 0, size.c_str()) == 0;
    if (!mounted_) reason_ = std::strerror(errno);
  }
  SmallDisk(SmallDisk const&) = delete;
  SmallDisk& operator=(SmallDisk const&) = delete;
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] bool mounted() const noexcept { return mounted_; }
  [[nodiscard]] std::string const& reason() const noexcept { return reason_; }

 private:
  std::filesystem::path path_;
  bool mounted_ = false;
  std::string reason_;
};

}  // namespace unimem
