#include "device/cpu/machine.hpp"

#include "core/system_page.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

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

std::size_t physical_memory_bytes() {
  auto const pages = sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<std::size_t>(pages) * system_page_bytes() : std::size_t{1} << 30;
}

std::size_t available_memory_bytes() {
  if (auto const text = field("/proc/meminfo", "MemAvailable")) {
    std::uint64_t kibibytes = 0;
    if (std::from_chars(text->data(), text->data() + text->size(), kibibytes).ec == std::errc{}) {
      return static_cast<std::size_t>(kibibytes * 1024);
    }
  }
  return physical_memory_bytes();
}

std::size_t private_resident_bytes() {
  std::ifstream file{"/proc/self/statm"};  // pages: all, resident, of these shared with others or with files
  std::size_t all = 0, resident = 0, shared = 0;
  if (!(file >> all >> resident >> shared) || shared > resident) return 0;
  return (resident - shared) * system_page_bytes();
}

}  // namespace unimem::detail
