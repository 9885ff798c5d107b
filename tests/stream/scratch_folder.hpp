#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// A folder of its own for one test, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    auto name = (std::filesystem::temp_directory_path() / "unimem-stream-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder: " + name);
    path_ = name;
  }
  ScratchFolder(ScratchFolder const&) = delete;
  ScratchFolder& operator=(ScratchFolder const&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  template <class T>
  std::filesystem::path write(std::string_view name, std::vector<T> const& elements) const {
    return write(name, std::string_view(reinterpret_cast<char const*>(elements.data()), elements.size() * sizeof(T)));
  }
  std::filesystem::path write(std::string_view name, std::string_view contents) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    file.close();
    EXPECT_TRUE(file.good()) << name;
    return path_ / name;
  }

  [[nodiscard]] std::string read(std::string_view name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    EXPECT_TRUE(file.good()) << name;
    return {std::istreambuf_iterator<char>(file), {}};
  }
  template <class T>
  [[nodiscard]] std::vector<T> read_elements(std::string_view name) const {
    auto const contents = read(name);
    std::vector<T> elements(contents.size() / sizeof(T));
    if (!elements.empty()) std::memcpy(elements.data(), contents.data(), elements.size() * sizeof(T));
    return elements;
  }

  /// The names of everything in it.
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> result;
    for (auto const& entry : std::filesystem::directory_iterator(path_))
      result.insert(entry.path().filename().string());
    return result;
  }

 private:
  std::filesystem::path path_;
};

/// Bytes as files have them: stretches of noise, of text and of one value.
inline std::vector<std::uint8_t> mixed_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random{seed};
  std::vector<std::uint8_t> bytes;
  bytes.reserve(count);
  while (bytes.size() < count) {
    auto const length = std::min<std::size_t>(count - bytes.size(), 1 + random() % 3'000);
    auto const kind = random() % 3;
    auto const value = static_cast<std::uint8_t>(random());
    for (std::size_t i = 0; i < length; ++i) {
      bytes.push_back(kind == 0   ? value
                      : kind == 1 ? static_cast<std::uint8_t>(random())
                                  : static_cast<std::uint8_t>('a' + random() % 26));
    }
  }
  return bytes;
}

}  // namespace unimem
