#include "fuzz/target.hpp"
#include "stream/safetensors.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>

namespace unimem::fuzz {
namespace {

void check_tensors(detail::SafetensorsHeader const& header, std::uint64_t data_bytes) {
  std::set<std::string_view> names;
  std::uint64_t at = 0;
  for (auto const& tensor : header.tensors) {
    require(names.insert(tensor.name).second, "a name was taken twice");
    require(tensor.begin == at && tensor.end >= at && tensor.end <= data_bytes, "a tensor lies beside the data");
    at = tensor.end;
    // Within 64 bits as long as what is left to multiply is no more than the data.
    __extension__ using Wide = unsigned __int128;
    Wide bytes = tensor.type->bytes;
    bool const empty = std::ranges::find(tensor.shape, 0U) != tensor.shape.end();
    for (auto const extent : tensor.shape) {
      if (empty) bytes = 0;
      bytes *= extent;
      require(bytes <= data_bytes, "a shape of more bytes than there are was taken");
    }
    require(bytes == tensor.end - tensor.begin, "the bytes are not those of the shape");
  }
  require(at == data_bytes, "the data have bytes that are no tensor's");
}

/// Every header that is read can be written, and then says the same.
bool run_safetensors(std::string_view input) {
  auto const prefix = bytes_of(input).first(std::min(input.size(), detail::safetensors_prefix_bytes));
  auto const size = taken_of_file(
      "a.safetensors", [&] { return detail::safetensors_header_bytes(prefix, input.size(), "a.safetensors"); });
  if (!size) return false;
  require(*size <= input.size() - prefix.size(), "a header is longer than the file");
  auto const json = input.substr(prefix.size(), *size);
  auto const data_bytes = input.size() - prefix.size() - *size;
  auto const header = taken_of_file(
      "a.safetensors", [&] { return detail::parse_safetensors_header(json, data_bytes, "a.safetensors"); });
  if (!header) return false;
  check_tensors(*header, data_bytes);

  auto const written = detail::format_safetensors_header(header->tensors, header->metadata);
  require(written.size() % 8 == 0, "a written header is not padded to 8 bytes");
  auto const again_bytes = detail::safetensors_header_bytes(bytes_of(written).first(8), written.size(), "a");
  require(again_bytes == written.size() - 8, "a written header has another length than it says");
  auto const again = detail::parse_safetensors_header(std::string_view(written).substr(8), data_bytes, "a");
  require(again.metadata == header->metadata && again.tensors.size() == header->tensors.size(),
          "what is written from a header says something else");
  for (auto const& tensor : header->tensors) {
    require(std::ranges::find(again.tensors, tensor) != again.tensors.end(), "a tensor that is written is lost");
  }
  return true;
}

Enlisted const safetensors_target{{"safetensors", run_safetensors}};

}  // namespace
}  // namespace unimem::fuzz
