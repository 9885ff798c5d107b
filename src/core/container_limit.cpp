#include "core/container_limit.hpp"

#include <unimem/core/size.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <utility>

namespace unimem::detail {
namespace {

namespace fs = std::filesystem;

/// What version 1 says for "none" is the largest whole number of pages, not a number of its own.
constexpr std::uint64_t no_limit = std::uint64_t{1} << 62;

/// The number a file begins with; nothing when there is no such file or it says something else ("max").
std::optional<std::uint64_t> number_in(fs::path const& path) {
  std::ifstream file{path};
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

/// None is 0 too: no process runs within that, and systems that only look like Linux (gVisor) say it where they keep no
/// count.
std::optional<std::size_t> limit_in(fs::path const& path) {
  auto const limit = number_in(path);
  if (!limit || *limit == 0 || *limit >= no_limit) return std::nullopt;
  return static_cast<std::size_t>(*limit);
}

/// The sum of the fields of a statistics file (`name number` a line) with one of two names.
std::uint64_t sum_of(fs::path const& path, std::string_view one, std::string_view other) {
  std::ifstream file{path};
  std::uint64_t sum = 0, number = 0;
  for (std::string name; file >> name >> number;) {
    if (name == one || name == other) sum += number;
  }
  return sum;
}

}  // namespace

/// How a version calls the same things.
struct ContainerLimit::Version {
  std::string_view limit, usage;
  std::string_view inactive_files, active_files;  ///< in its statistics, this group's and those below it
};

ContainerLimit::Version const ContainerLimit::first{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                                    "total_inactive_file", "total_active_file"};
ContainerLimit::Version const ContainerLimit::second{"memory.max", "memory.current", "inactive_file", "active_file"};

std::string ContainerLimit::Standing::text() const {
  return fmt::format("the container's memory limit of {} ({})", format_size(limit), group.string());
}

ContainerLimit const& ContainerLimit::of_this_process() {
  static ContainerLimit const limit;
  return limit;
}

ContainerLimit::ContainerLimit(fs::path const& groups, fs::path const& membership) {
  std::ifstream lines{membership};
  // Lines are `number:controllers:path`; version 2 has no controllers there.
  for (std::string line; std::getline(lines, line);) {
    auto const one = line.find(':');
    auto const other = one == std::string::npos ? one : line.find(':', one + 1);
    if (other == std::string::npos) continue;
    auto const controllers = line.substr(one + 1, other - one - 1);
    auto const group = line.substr(other + 1);
    if (controllers.empty()) {
      add_limited(groups, group, second);
    } else if (controllers == "memory") {
      add_limited(groups / "memory", group, first);
    }
  }
}

void ContainerLimit::add_limited(fs::path const& root, std::string group, Version const& version) {
  // In a container the path may be that of the host, of which only the end of the way up is mounted here: what is not
  // there is passed over.
  while (true) {
    auto const directory = group.size() <= 1 ? root : root / group.substr(1);
    if (limit_in(directory / version.limit)) groups_.push_back({directory, &version});
    auto const slash = group.rfind('/');
    if (slash == std::string::npos || group.size() <= 1) return;
    group.resize(std::max<std::size_t>(slash, 1));
  }
}

std::optional<ContainerLimit::Standing> ContainerLimit::standing_of(Group const& group) {
  auto const& [directory, version] = group;
  auto const limit = limit_in(directory / version->limit);
  if (!limit) return std::nullopt;
  auto const usage = number_in(directory / version->usage).value_or(0);
  auto const files = sum_of(directory / "memory.stat", version->inactive_files, version->active_files);
  return Standing{*limit, static_cast<std::size_t>(usage - std::min(usage, files)), directory};
}

std::optional<ContainerLimit::Standing> ContainerLimit::smallest() const {
  std::optional<Standing> found;
  for (auto const& group : groups_) {
    auto standing = standing_of(group);
    if (standing && (!found || standing->limit < found->limit)) found = std::move(standing);
  }
  return found;
}

std::optional<ContainerLimit::Standing> ContainerLimit::tightest() const {
  std::optional<Standing> found;
  for (auto const& group : groups_) {
    auto standing = standing_of(group);
    if (standing && (!found || standing->room() < found->room())) found = std::move(standing);
  }
  return found;
}

}  // namespace unimem::detail
