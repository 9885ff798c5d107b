#include "device/cpu/machine.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>

namespace unimem::detail {
namespace {

std::string_view trimmed(std::string_view text) {
  auto const first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

/// The value of the first `key : value` line of a file under /proc.
std::optional<std::string> field(char const* path, std::string_view key) {
  std::ifstream file{path};
  for (std::string line; std::getline(file, line);) {
    auto const colon = line.find(':');
    if (colon == std::string::npos || trimmed(std::string_view{line}.substr(0, colon)) != key) continue;
    return std::string(trimmed(std::string_view{line}.substr(colon + 1)));
  }
  return std::nullopt;
}

/// The number a file begins with; nothing when there is no such file or it says something else ("max").
std::optional<std::uint64_t> number_in(std::string const& path) {
  std::ifstream file{path};
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

/// The least limit from a group up to the root of its hierarchy: a limit above binds as well.
std::uint64_t least_limit(std::string const& root, std::string group, std::string_view file) {
  auto least = UINT64_MAX;
  while (true) {
    if (auto const limit = number_in(fmt::format("{}{}/{}", root, group == "/" ? "" : group, file))) {
      least = std::min(least, *limit);
    }
    auto const slash = group.rfind('/');
    if (slash == std::string::npos || group.size() <= 1) return least;
    group.resize(slash);
  }
}

std::uint64_t control_group_limit() {
  std::ifstream groups{"/proc/self/cgroup"};
  auto least = UINT64_MAX;
  // Lines are `number:controllers:path`; version 2 has no controllers there.
  for (std::string line; std::getline(groups, line);) {
    auto const first = line.find(':');
    auto const second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    auto const controllers = line.substr(first + 1, second - first - 1);
    auto const group = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, least_limit("/sys/fs/cgroup", group, "memory.max"));
    } else if (controllers == "memory") {
      least = std::min(least, least_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

std::uint64_t physical_memory_bytes() {
  auto const pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes)
                                     : std::uint64_t{1} << 30;
}

}  // namespace

std::string processor_name() {
  return field("/proc/cpuinfo", "model name").value_or("cpu");
}

std::string processor_vendor() {
  return field("/proc/cpuinfo", "vendor_id").value_or("");
}

std::string system_release() {
  utsname names{};
  if (uname(&names) != 0) return {};
  return fmt::format("{} {}", names.sysname, names.release);
}

std::size_t usable_memory_bytes() {
  return static_cast<std::size_t>(std::min(physical_memory_bytes(), control_group_limit()));
}

std::size_t available_memory_bytes() {
  if (auto const text = field("/proc/meminfo", "MemAvailable")) {
    std::uint64_t kibibytes = 0;
    if (std::from_chars(text->data(), text->data() + text->size(), kibibytes).ec == std::errc{}) {
      return static_cast<std::size_t>(kibibytes * 1024);
    }
  }
  return usable_memory_bytes();
}

}  // namespace unimem::detail
