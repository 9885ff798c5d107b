#include "core/disk_cache.hpp"
#include "fuzz/folder.hpp"

#include <algorithm>
#include <iterator>
#include <system_error>

namespace unimem::fuzz {
namespace {

constexpr std::string_view key = "the key", value = "the value\nof two lines";

}  // namespace

/// Whatever stands in the place of an entry: it is believed if it is the whole entry, and else as good as not there.
bool check_cache_entry(std::string_view input) {
  static detail::DiskCache const cache{own_folder() / "cache", "fuzz", std::uintmax_t{1} << 20};
  static std::string const entry = [] {
    if (auto const problem = cache.keep(key, value)) throw std::system_error(problem, "keep");
    std::ifstream file(cache.file_of(key), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  // The folder is the user's alone, and so is the file: what it says is all there is to doubt.
  auto const place = cache.file_of(key);
  write_file(place, input);
  ::chmod(place.c_str(), 0600);
  bool damaged = false;
  auto const found = cache.find(key, &damaged);
  expect(!found || !damaged, "believed, and damaged");
  auto const others = std::ranges::mismatch(input, entry);
  bool const one_byte_off = input.size() == entry.size() && input != entry &&
                            std::ranges::equal(others.in1 + 1, input.end(), others.in2 + 1, entry.end());
  expect(!found || !one_byte_off, "an entry with a damaged byte is believed");
  expect(input != entry || found == value, "a whole entry is not believed");
  if (auto const problem = cache.keep(key, value)) throw std::system_error(problem, "keep");
  expect(cache.find(key) == value, "what was kept in its place is not found");
  return found.has_value();
}

}  // namespace unimem::fuzz
