#include "core/own_files.hpp"

#include "core/last_error.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace unimem::detail {
namespace {

class Disbeliefs final : public std::error_category {
 public:
  [[nodiscard]] char const* name() const noexcept override { return "disbelief"; }
  [[nodiscard]] std::string message(int reason) const override {
    switch (static_cast<Disbelief>(reason)) {
      case Disbelief::anothers:
        return "it belongs to another user";
      case Disbelief::writable:
        return "others than its owner may write to it";
      case Disbelief::link:
        return "a symbolic link is in its place";
    }
    return "unknown";
  }
};

}  // namespace

std::error_code make_error_code(Disbelief reason) noexcept {
  static const Disbeliefs category;
  return {static_cast<int>(reason), category};
}

std::error_code why_not_believed(int file) noexcept {
  struct ::stat status{};
  if (::fstat(file, &status) != 0) return last_error();
  if (status.st_uid != ::geteuid()) return Disbelief::anothers;
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return Disbelief::writable;
  return {};
}

UniqueFd open_own_folder(std::filesystem::path const& path, std::error_code& problem) noexcept {
  UniqueFd folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (folder) {
    problem = why_not_believed(folder.get());
  } else {
    problem = last_error();
    struct ::stat status{};
    if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) problem = Disbelief::link;
  }
  return problem ? UniqueFd{} : std::move(folder);
}

std::error_code make_own_folders(std::filesystem::path const& path) {
  std::error_code problem;
  if (path.empty() || std::filesystem::is_directory(path, problem)) return {};
  if (path.has_parent_path() && path.parent_path() != path) {
    problem = make_own_folders(path.parent_path());
    if (problem) return problem;
  }
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};  // another process may have been quicker
  return last_error();
}

}  // namespace unimem::detail
