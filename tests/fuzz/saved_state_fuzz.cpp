#include "file/digest.hpp"
#include "fuzz/target.hpp"
#include "stream/saved_state.hpp"

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>

namespace unimem::fuzz {
namespace {

/// With the checksum of itself where `save` writes it, which no random change of the text would have.
std::string sealed(std::string header) {
  constexpr std::string_view mark = "\"unimem.header\":\"";
  auto const found = header.find(mark);
  std::string const zeros(16, '0');
  auto const at = found + mark.size();
  if (found == std::string::npos || header.size() - at < zeros.size()) return header;
  header.replace(at, zeros.size(), zeros);
  auto const digest = detail::digest_of(Checksum::xxh3, bytes_of(header));
  return header.replace(at, zeros.size(), detail::digest_text(Checksum::xxh3, digest));
}

void check_buffers(detail::SavedState const& state, std::uint64_t header_bytes, std::uint64_t data_bytes) {
  std::set<std::string_view> names;
  for (auto const& buffer : state.buffers) {
    require(names.insert(buffer.name).second, "a name was taken twice");
    if (!buffer.has_bytes) {
      require(state.checked, "a buffer without contents is of another origin than save");
      continue;
    }
    require(buffer.offset >= header_bytes && buffer.offset - header_bytes <= data_bytes, "a buffer is beside the data");
    require(buffer.bytes <= data_bytes - (buffer.offset - header_bytes), "a buffer ends beyond the data");
    if (!state.checked) continue;
    auto const blocks = buffer.bytes / state.block_bytes + (buffer.bytes % state.block_bytes == 0 ? 0 : 1);
    require(buffer.digests.size() == blocks, "a buffer has other checksums than blocks");
  }
}

/// As `format_saved_state` takes it: offsets are the data's.
std::string written_from(detail::SavedState state, std::uint64_t header_bytes) {
  for (auto& buffer : state.buffers) buffer.offset -= buffer.has_bytes ? header_bytes : 0;
  return detail::format_saved_state(state);
}

/// A file, of which the header is looked at: the prefix says how long that is. What is read of one of `save` can be
/// written, and then says the same.
bool run_saved_state(std::string_view input) {
  constexpr std::string_view path = "a.safetensors";
  auto const prefix = bytes_of(input).first(std::min(input.size(), detail::safetensors_prefix_bytes));
  auto const json_bytes =
      taken_of_file(path, [&] { return detail::safetensors_header_bytes(prefix, input.size(), std::string(path)); });
  if (!json_bytes) return false;
  auto const header = sealed(std::string(input.substr(0, prefix.size() + *json_bytes)));
  auto const data_bytes = input.size() - header.size();
  auto const state =
      taken_of_file(path, [&] { return detail::parse_saved_state(header, data_bytes, std::string(path)); });
  if (!state) return false;
  check_buffers(*state, header.size(), data_bytes);
  if (!state->checked) return true;

  auto const written = written_from(*state, header.size());
  auto const again = detail::parse_saved_state(written, data_bytes, "again");
  require(again.checked && again.block_bytes == state->block_bytes, "what is written has other blocks");
  require(again.buffers.size() == state->buffers.size(), "a buffer is lost when it is written");
  for (auto const& buffer : state->buffers) {
    auto const found = std::ranges::find(again.buffers, buffer.name, &detail::SavedBuffer::name);
    require(found != again.buffers.end(), "a name is another when it is written");
    require(found->element == buffer.element && found->bytes == buffer.bytes && found->digests == buffer.digests &&
                found->has_bytes == buffer.has_bytes,
            "what is written of a buffer says something else");
    require(!buffer.has_bytes || found->offset - written.size() == buffer.offset - header.size(),
            "a buffer's bytes are elsewhere when it is written");
  }
  require(written_from(again, written.size()) == written, "what is written twice differs");

  auto damaged = written;
  damaged[written.size() / 2] = static_cast<char>(damaged[written.size() / 2] ^ 1);
  require(!taken_of_file(path, [&] { return detail::parse_saved_state(damaged, data_bytes, std::string(path)); }),
          "a header with a flipped bit is taken");
  return true;
}

Enlisted const saved_state_target{{"saved_state", run_saved_state}};

}  // namespace
}  // namespace unimem::fuzz
