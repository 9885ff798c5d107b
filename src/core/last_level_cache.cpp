#include "core/last_level_cache.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace unimem::detail {
namespace {

constexpr std::size_t if_unknown = std::size_t{32} << 20;

/// The first processor's, as Linux lists them; 0 if it does not.
std::size_t listed_cache_bytes() {
  std::size_t most = 0;
  for (int index = 0;; ++index) {
    auto const folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    std::ifstream file(folder + "/size");
    std::size_t kilobytes = 0;
    char unit = 0;
    if (!(file >> kilobytes >> unit) || unit != 'K') return most;
    most = std::max(most, kilobytes << 10);  // of several levels the last is the largest
  }
}

std::size_t find_out() {
  // First: the C library adds up what all processors have, on some.
  if (auto const listed = listed_cache_bytes(); listed != 0) return listed;
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (auto const told = ::sysconf(_SC_LEVEL3_CACHE_SIZE); told > 0) return static_cast<std::size_t>(told);
#endif
  return if_unknown;
}

}  // namespace

std::size_t last_level_cache_bytes() {
  static auto const bytes = find_out();
  return bytes;
}

}  // namespace unimem::detail
