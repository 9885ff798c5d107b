#include "core/container_limit.hpp"
#include "device/temporary_folder.hpp"
#include "fuzz/target.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace unimem::fuzz {
namespace {

namespace fs = std::filesystem;

/// The files that an input may have, by path below the folder.
std::set<std::string> const& known_files() {
  static std::set<std::string> const all = [] {
    std::set<std::string> files{"membership"};
    for (std::string const group : {"groups", "groups/a", "groups/a/b"}) {
      for (auto const* const name : {"memory.max", "memory.current", "memory.stat"}) files.insert(group + '/' + name);
    }
    for (std::string const group : {"groups/memory", "groups/memory/a", "groups/memory/a/b"}) {
      for (auto const* const name : {"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"}) {
        files.insert(group + '/' + name);
      }
    }
    return files;
  }();
  return all;
}

using Files = std::map<std::string, std::string, std::less<>>;

/// A line "@PATH" begins a file, a new one of the same path replaces the one before. What belongs to none is passed
/// over.
Files files_in(std::string_view input) {
  Files files;
  std::string* current = nullptr;
  while (!input.empty()) {
    auto const end = std::min(input.find('\n') + 1, input.size());
    auto const line = input.substr(0, end == 0 ? input.size() : end);
    input.remove_prefix(line.size());
    if (line.starts_with('@')) {
      std::string path(line.substr(1));
      if (path.ends_with('\n')) path.pop_back();
      current = known_files().contains(path) ? &files[path] : nullptr;
      if (current != nullptr) current->clear();
    } else if (current != nullptr) {
      *current += line;
    }
  }
  return files;
}

/// The number that `text` begins with, taken off it.
std::optional<std::uint64_t> take_number(char const*& text) {
  char* end = nullptr;
  errno = 0;
  auto const number = std::strtoull(text, &end, 10);
  if (end == text || errno != 0) return std::nullopt;
  text = end;
  return number;
}

std::optional<std::uint64_t> number_in(Files const& files, std::string const& path) {
  auto const at = files.find(path);
  if (at == files.end()) return std::nullopt;
  auto const* text = at->second.c_str();
  return take_number(text);
}

std::uint64_t cached_in(Files const& files, std::string const& path, std::set<std::string> const& names) {
  auto const at = files.find(path);
  if (at == files.end()) return 0;
  std::uint64_t sum = 0;
  auto const* text = at->second.c_str();
  auto const* const end = text + at->second.size();
  auto const is_blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (true) {
    text = std::find_if_not(text, end, is_blank);
    auto const* const name_end = std::find_if(text, end, is_blank);
    std::string const name(text, name_end);
    text = name_end;
    auto const number = name.empty() ? std::nullopt : take_number(text);
    if (!number) return sum;
    if (!names.contains(name)) continue;
    sum += std::min(*number, std::numeric_limits<std::uint64_t>::max() - sum);
  }
}

struct Expected {
  std::uint64_t limit, room;
};

/// Every group with a limit that binds, by going up from the process's own in each hierarchy; nothing where a path is
/// none that the kernel writes.
std::optional<std::vector<Expected>> expected_groups(Files const& files) {
  std::vector<Expected> result;
  auto const at = files.find("membership");
  std::string_view rest = at == files.end() ? std::string_view{} : std::string_view{at->second};
  while (!rest.empty()) {
    auto const line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    auto const one = line.find(':');
    if (one == std::string_view::npos) continue;
    auto const other = line.find(':', one + 1);
    if (other == std::string_view::npos) continue;
    auto const controllers = line.substr(one + 1, other - one - 1);
    bool const first = controllers == "memory";
    if (!first && !controllers.empty()) continue;
    std::string const root = first ? "groups/memory" : "groups";
    auto const path = line.substr(other + 1);
    if (!path.empty() && (path.front() != '/' || path.find("//") != path.npos || path.find("..") != path.npos)) {
      return std::nullopt;
    }
    for (fs::path group = fs::path(path.empty() ? "/" : path).lexically_normal();; group = group.parent_path()) {
      auto const directory = (fs::path(root + group.string()) / "").lexically_normal().string();
      auto const limit = number_in(files, directory + (first ? "memory.limit_in_bytes" : "memory.max"));
      if (limit && *limit != 0 && *limit < std::uint64_t{1} << 62U) {
        auto const usage =
            number_in(files, directory + (first ? "memory.usage_in_bytes" : "memory.current")).value_or(0);
        auto const cached = cached_in(files, directory + "memory.stat",
                                      first ? std::set<std::string>{"total_inactive_file", "total_active_file"}
                                            : std::set<std::string>{"inactive_file", "active_file"});
        auto const used = usage - std::min(usage, cached);
        result.push_back({*limit, *limit - std::min(*limit, used)});
      }
      if (group == group.parent_path()) break;
    }
  }
  return result;
}

bool run_control_groups(std::string_view input) {
  static TemporaryFolder const folder;
  static bool const made =
      fs::create_directories(folder / "groups/a/b") && fs::create_directories(folder / "groups/memory/a/b");
  require(made, "the folders of groups cannot be made");
  auto const files = files_in(input);
  for (auto const& name : known_files()) {
    auto const at = files.find(name);
    if (at == files.end()) {
      fs::remove(folder / name);
    } else {
      std::ofstream(folder / name, std::ios::binary | std::ios::trunc) << at->second;
    }
  }
  detail::ContainerLimit const limit{folder / "groups", folder / "membership"};
  auto const smallest = limit.smallest();
  auto const tightest = limit.tightest();
  require(smallest.has_value() == limit.exists() && tightest.has_value() == limit.exists(),
          "a limit is there and is not");
  for (auto const& standing : {smallest, tightest}) {
    if (!standing) continue;
    auto const way = fs::weakly_canonical(standing->group).lexically_relative(fs::canonical(folder / "groups"));
    require(!way.empty() && *way.begin() != "..", "a group is outside of its hierarchy");
  }
  auto const expected = expected_groups(files);
  if (!expected) return limit.exists();
  require(limit.exists() == !expected->empty(),
          limit.exists() ? "a limit that no group has" : "a group's limit is not noticed");
  if (expected->empty()) return false;
  require(smallest->limit == std::ranges::min_element(*expected, {}, &Expected::limit)->limit,
          "the smallest limit is another");
  require(tightest->room() == std::ranges::min_element(*expected, {}, &Expected::room)->room,
          "the least room is another");
  return true;
}

Enlisted const control_groups_target{{"control_groups", run_control_groups}};

}  // namespace
}  // namespace unimem::fuzz
