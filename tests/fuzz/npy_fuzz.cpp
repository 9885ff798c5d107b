#include "fuzz/target.hpp"
#include "stream/npy.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

namespace unimem::fuzz {
namespace {

/// Every header that is read can be written, and then says the same.
bool run_npy(std::string_view input) {
  auto const data = bytes_of(input);
  auto const size = taken_of_file("a.npy", [&] {
    return detail::npy_header_bytes(data.first(std::min(data.size(), detail::npy_prefix_bytes)), "a.npy");
  });
  auto const exact = size && *size <= data.size() ? data.first(*size) : data;
  auto const header = taken_of_file("a.npy", [&] { return detail::parse_npy_header(exact, "a.npy"); });
  if (!header) return false;
  require(size && *size == exact.size() && header->data_offset == exact.size(),
          "the elements begin elsewhere than the header ends");

  __extension__ using Wide = unsigned __int128;
  Wide bytes = header->type->bytes;
  bool const empty = std::ranges::find(header->shape, 0U) != header->shape.end();
  for (auto const extent : header->shape) {
    if (empty) bytes = 0;
    bytes *= extent;
    require(bytes >> 64U == 0, "a shape of more than 2^64 bytes was taken");
  }
  require(bytes == header->data_bytes, "the bytes are not those of the shape");

  auto const written = detail::format_npy_header(*header->type, header->shape);
  auto const again = detail::parse_npy_header(bytes_of(written), "a.npy");
  require(again.type == header->type && again.shape == header->shape && again.data_bytes == header->data_bytes,
          "what is written from a header says something else");
  require(again.data_offset == written.size() && written.size() % 64 == 0,
          "a written header is not padded to 64 bytes");
  require(detail::npy_header_bytes(bytes_of(written).first(detail::npy_prefix_bytes), "a.npy") == written.size(),
          "a written header has another length than it says");
  return true;
}

Enlisted const npy_target{{"npy", run_npy}};

}  // namespace
}  // namespace unimem::fuzz
