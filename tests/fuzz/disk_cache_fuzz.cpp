#include "core/disk_cache.hpp"
#include "device/temporary_folder.hpp"
#include "fuzz/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>

namespace unimem::fuzz {
namespace {

constexpr std::size_t cache_limit = 2048;

std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t hash = 14'695'981'039'346'656'037U;
  for (char const c : bytes) hash = (hash ^ static_cast<std::uint8_t>(c)) * 1'099'511'628'211U;
  return hash;
}

/// The only file that holds this.
std::string entry(std::string_view key, std::string_view value) {
  auto const both = std::string(key) + std::string(value);
  return fmt::format("unimem kernel 1\n{} {} {:016x}\n{}", key.size(), value.size(), fnv1a(both), both);
}

/// Which key a file is an entry of, and with what value: whichever split of its end makes the same file.
std::optional<std::pair<std::string_view, std::string_view>> expected_entry(std::string_view file) {
  auto const first = file.find('\n');
  auto const second = first == std::string_view::npos ? first : file.find('\n', first + 1);
  if (second == std::string_view::npos || file.size() > cache_limit) return std::nullopt;
  auto const both = file.substr(second + 1);
  auto const hash = fmt::format("{:016x}", fnv1a(both));
  if (file.substr(0, second + 1).find(hash) == std::string_view::npos) return std::nullopt;
  for (std::size_t i = 0; i <= both.size(); ++i) {
    if (file.starts_with(fmt::format("unimem kernel 1\n{} {} {}\n", i, both.size() - i, hash))) {
      return std::pair{both.substr(0, i), both.substr(i)};
    }
  }
  return std::nullopt;
}

/// A file that is there for one input only.
struct Placed {
  explicit Placed(std::filesystem::path const& where, std::string_view content) : path(where) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }
  Placed(Placed const&) = delete;
  Placed& operator=(Placed const&) = delete;
  ~Placed() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }

  std::filesystem::path path;
};

/// The input is a key, a line of its own, and the file that lies where its entry would. What is believed is an entry of
/// that key.
bool run_disk_cache(std::string_view input) {
  static TemporaryFolder const folder;
  static detail::DiskCache const cache{folder.path(), "kernel", cache_limit};
  auto const end = std::min(input.find('\n'), input.size());
  auto const key = input.substr(0, end);
  auto const file = input.substr(std::min(end + 1, input.size()));
  auto const path = cache.file_of(key);
  auto const expected = expected_entry(file);
  Placed const placed{path, file};

  bool damaged = false;
  auto const found = cache.find(key, &damaged);
  require(damaged == !expected.has_value(),
          damaged ? "an entry is taken for damaged" : "what is no entry is taken for one");
  bool const is_own = expected && expected->first == key;
  require(found.has_value() == is_own, found ? "what is no entry of this key is believed" : "an entry is not found");
  require(!found || *found == expected->second, "another value is found than is kept");

  // Written anew in its place, unless it is more than is kept.
  require(!cache.keep(key, file), "an entry cannot be kept");
  auto const whole = entry(key, file);
  bool const kept = whole.size() <= cache_limit;
  if (kept) {
    require(content_of(path) == whole, "an entry is written otherwise");
    require(cache.find(key, &damaged) == std::string(file) && !damaged, "what was kept is not found");
  }
  std::filesystem::remove(path);
  require(!cache.find(key, &damaged) && !damaged, "something is found where nothing is");
  require(std::filesystem::is_empty(folder.path()), "something else is left in the folder");
  return found.has_value();
}

Enlisted const disk_cache_target{{"disk_cache", run_disk_cache}};

}  // namespace
}  // namespace unimem::fuzz
