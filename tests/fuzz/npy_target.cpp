#include <unimem/core/error.hpp>

#include "fuzz/target.hpp"
#include "stream/npy.hpp"

#include <algorithm>
#include <span>

namespace unimem::fuzz {

bool check_npy(std::string_view input) {
  auto const bytes = std::as_bytes(std::span{input});
  auto const prefix = bytes.first(std::min(bytes.size(), detail::npy_prefix_bytes));
  try {
    auto const length = detail::npy_header_bytes(prefix, "file");
    expect(length <= detail::longest_npy_header, "a header that is too long was announced");
    if (length > bytes.size()) return false;
    auto const header = detail::parse_npy_header(bytes.first(length), "file");
    expect(header.data_offset == length, "the elements begin elsewhere");
    auto const again = detail::format_npy_header(header.element, header.shape);
    auto const same = detail::parse_npy_header(std::as_bytes(std::span{again}), "again");
    expect(again.size() % 64 == 0, "the elements are not aligned");
    expect(same.element == header.element && same.shape == header.shape, "written again it means something else");
    expect(same.data_bytes == header.data_bytes, "written again it is of another size");
    return true;
  } catch (IoError const& error) {
    expect(error.path == "file", "what was accepted is refused when it is written again");
    return false;
  }
}

}  // namespace unimem::fuzz
