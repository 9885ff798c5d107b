#include "fuzz/target.hpp"
#include "stream/byte_source.hpp"
#include "stream/npy.hpp"
#include "stream/npz.hpp"

#include <cstddef>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace unimem::fuzz {
namespace {

/// The members lie in the file, one behind another, each behind its own name, and nothing is read beside it; nor are
/// the arrays in them.
bool run_npz(std::string_view input) {
  detail::ByteSource const source{"a.npz", input.size(), [&](std::uint64_t offset, std::span<std::byte> to) {
                                    require(offset <= input.size() && to.size() <= input.size() - offset,
                                            "bytes beside the file were asked for");
                                    if (!to.empty()) std::memcpy(to.data(), input.data() + offset, to.size());
                                  }};
  auto const members = taken_of_file("a.npz", [&] { return detail::read_npz_members(source); });
  if (!members) return false;
  std::set<std::string_view> names;
  std::uint64_t end = 0;
  for (auto const& member : *members) {
    require(names.insert(member.name).second, "a name was taken twice");
    require(member.offset >= end && member.offset <= input.size(), "members overlap");
    require(member.bytes <= input.size() - member.offset, "a member ends beyond the file");
    auto const own_header = input.substr(end, member.offset - end);
    require(own_header.find(member.name + ".npy") != std::string_view::npos, "a member is not behind its name");
    end = member.offset + member.bytes;
    auto const header =
        taken_of_file("a.npz", [&] { return detail::read_npy_header(source, member.offset, member.bytes); });
    if (!header) continue;
    require(header->data_offset > member.offset && header->data_offset + header->data_bytes == end,
            "an array does not end where its member does");
  }
  return true;
}

Enlisted const npz_target{{"npz", run_npz}};

}  // namespace
}  // namespace unimem::fuzz
