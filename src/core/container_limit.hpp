#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace unimem::detail {

/// What the control groups around this process leave it of the machine's memory. A group that is full refuses nothing,
/// its processes are killed where they touch the next page: so it has to be asked before memory is taken.
///
/// Version 1, version 2 and both at once; every group from the process's own up to the root of its hierarchy binds.
/// Which of them have a limit is found out once, so that where there is none asking costs nothing; how large it is, and
/// what is used of it, is read at each question. Thread-safe.
class ContainerLimit {
 public:
  /// How far one group is from its limit.
  struct Standing {
    std::size_t limit = 0;
    std::size_t used = 0;         ///< by all in it, but for cached files, which the kernel takes back before it kills
    std::filesystem::path group;  ///< its directory

    [[nodiscard]] std::size_t room() const noexcept { return used >= limit ? 0 : limit - used; }
    /// "the container's memory limit of 1 GiB (/sys/fs/cgroup/…)", for errors.
    [[nodiscard]] std::string text() const;
  };

  /// `groups` is where the hierarchies are mounted, `membership` says which groups the process is in; others than the
  /// system's are for tests. What cannot be read there is no limit.
  explicit ContainerLimit(std::filesystem::path const& groups = "/sys/fs/cgroup",
                          std::filesystem::path const& membership = "/proc/self/cgroup");

  /// That of this process, as it was when it was first asked for.
  [[nodiscard]] static ContainerLimit const& of_this_process();

  /// The group with the smallest limit; nothing if none has one.
  [[nodiscard]] std::optional<Standing> smallest() const;

  /// The group with the least room, which need not be the one with the smallest limit: others may be in it.
  [[nodiscard]] std::optional<Standing> tightest() const;

  [[nodiscard]] bool exists() const noexcept { return !groups_.empty(); }

 private:
  struct Version;
  struct Group {
    std::filesystem::path directory;
    Version const* version;
  };

  static Version const first, second;

  void add_limited(std::filesystem::path const& root, std::string group, Version const& version);
  [[nodiscard]] static std::optional<Standing> standing_of(Group const& group);

  std::vector<Group> groups_;  ///< those that have a limit
};

}  // namespace unimem::detail
