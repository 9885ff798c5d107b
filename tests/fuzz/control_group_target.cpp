#include "device/cpu/container_limit.hpp"
#include "fuzz/folder.hpp"

#include <cstddef>

namespace unimem::fuzz {

/// A control group of which every file says what the input does, parts of it apart by a line of "--": the membership,
/// the limit, what is used, the statistics.
bool check_control_group(std::string_view input) {
  static auto const root = own_folder() / "groups";
  std::filesystem::create_directories(root / "a" / "b");
  std::string_view parts[4];
  for (auto& part : parts) {
    auto const end = input.find("\n--\n");
    part = input.substr(0, end);
    input.remove_prefix(end == std::string_view::npos ? input.size() : end + 4);
  }
  write_file(root / "membership", parts[0]);
  for (auto const& group : {root / "a", root / "a" / "b"}) {
    write_file(group / "memory.max", parts[1]);
    write_file(group / "memory.current", parts[2]);
    write_file(group / "memory.stat", parts[3]);
  }
  detail::ContainerLimit const container{root, root / "membership"};
  auto const smallest = container.smallest(), tightest = container.tightest();
  expect(smallest.has_value() == tightest.has_value(), "a limit that is not always there");
  expect(container.exists() || !smallest, "a limit of no group");
  for (auto const& standing : {smallest, tightest}) {
    if (!standing) continue;
    expect(standing->limit < std::size_t{1} << 62, "no limit was taken for one");
    expect(standing->room() <= standing->limit, "more room than the limit leaves");
    // Other than by "..", which leaves the hierarchy, the group is one of those of the process.
    expect(standing->group.string().starts_with(root.string()), "a group of another hierarchy");
  }
  expect(!smallest || tightest->room() <= smallest->room(), "the tightest has more room than the smallest");
  return smallest.has_value();
}

}  // namespace unimem::fuzz
