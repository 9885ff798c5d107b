#include "cli/sandbox.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace unimem {

namespace fs = std::filesystem;

Sandbox::Sandbox() {
  auto pattern = ::testing::TempDir() + "unimem-cli-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make " + pattern);
  path_ = pattern;
  fs::permissions(path_, fs::perms::all);
}

Sandbox::~Sandbox() {
  std::error_code ignored;
  for (auto const& entry : fs::recursive_directory_iterator(path_, ignored)) {
    if (entry.is_directory(ignored)) fs::permissions(entry.path(), fs::perms::owner_all, ignored);
  }
  fs::remove_all(path_, ignored);
}

fs::path Sandbox::write(std::string_view name, std::string_view contents) const {
  auto const path = path_ / name;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.native());
  return path;
}

fs::path Sandbox::write_hole(std::string_view name, std::size_t bytes) const {
  auto const path = write(name, "");
  fs::resize_file(path, bytes);
  return path;
}

std::string Sandbox::read(std::string_view name) const {
  std::ifstream file(path_ / name, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::map<std::string, std::string> Sandbox::snapshot() const {
  constexpr std::uintmax_t small = 1 << 20;
  std::map<std::string, std::string> all;
  for (auto const& entry : fs::recursive_directory_iterator(path_, fs::directory_options::skip_permission_denied)) {
    auto& what = all[fs::relative(entry.path(), path_).native()];
    auto const status = entry.symlink_status();
    if (fs::is_directory(status)) {
      what = "folder";
    } else if (!fs::is_regular_file(status)) {
      what = "neither file nor folder";
    } else if (entry.file_size() > small) {
      what = std::to_string(entry.file_size()) + " bytes";
    } else {
      what = read(fs::relative(entry.path(), path_).native());
    }
  }
  return all;
}

}  // namespace unimem
