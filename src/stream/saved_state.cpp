#include "stream/saved_state.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "file/digest.hpp"
#include "stream/tensor_type.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <span>
#include <utility>

namespace unimem::detail {
namespace {

// Keys of `__metadata__`. Those that end with a dot go on with a buffer's name.
constexpr std::string_view own_prefix = "unimem.";
constexpr std::string_view version_key = "unimem.save";
constexpr std::string_view checksum_key = "unimem.checksum";
constexpr std::string_view block_key = "unimem.block_bytes";
constexpr std::string_view header_key = "unimem.header";
constexpr std::string_view digests_key = "unimem.digests.";
constexpr std::string_view element_key = "unimem.element.";
constexpr std::string_view empty_key = "unimem.empty.";
constexpr std::string_view save_version = "1";

/// How the checksum of the header stands in it. Text of JSON never has such a run: quotes in it are escaped.
constexpr std::string_view header_mark = "\"unimem.header\":\"";

constexpr auto saved_by = Checksum::xxh3;

std::string keyed(std::string_view key, std::string_view name) {
  return fmt::format("{}{}", key, name);
}

TensorType const* saved_type_called(std::string_view name) noexcept {
  auto const types = tensor_types();
  auto const found = std::ranges::find(types, name, &TensorType::name);
  return found == types.end() || found->safetensors.empty() ? nullptr : &*found;
}

/// Of a shape and type that no longer fit what the buffer has, a row of the elements; else of bytes.
SafetensorsEntry saved_entry_of(SavedBuffer const& buffer) {
  SafetensorsEntry entry;
  entry.name = buffer.name;
  entry.type = saved_type_called(buffer.element);
  entry.shape = buffer.shape;
  entry.begin = buffer.offset;
  entry.end = buffer.offset + buffer.bytes;
  if (entry.type != nullptr && tensor_bytes(*entry.type, entry.shape) == buffer.bytes) return entry;
  if (entry.type == nullptr || buffer.bytes % entry.type->bytes != 0) entry.type = saved_type_called("uint8");
  entry.shape = {buffer.bytes / entry.type->bytes};
  return entry;
}

std::string text_of(std::vector<std::uint64_t> const& digests) {
  std::string text;
  for (auto const digest : digests) text += digest_text(saved_by, digest);
  return text;
}

std::string sealed(std::string header) {
  auto const at = header.find(header_mark) + header_mark.size();
  auto const digest = digest_text(saved_by, digest_of(saved_by, std::as_bytes(std::span(header))));
  return header.replace(at, digest.size(), digest);
}

/// What is in the metadata of a file, read strictly.
class MetadataReader {
 public:
  MetadataReader(std::map<std::string, std::string> const& metadata, std::string const& path)
      : metadata_(metadata), path_(path) {}

  [[noreturn]] void malformed(std::string_view what) const {
    throw IoError(path_, 0, fmt::format("no file of save: {}", what));
  }
  [[nodiscard]] std::string const* find(std::string const& key) const {
    auto const found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::string const& at(std::string const& key) const {
    auto const* const text = find(key);
    if (text == nullptr) malformed(fmt::format("its metadata have no {}", detail::quoted(key)));
    return *text;
  }
  [[nodiscard]] std::uint64_t number(std::string_view text) const {
    std::uint64_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
      malformed(fmt::format("{} is no size", detail::quoted(text)));
    return value;
  }
  [[nodiscard]] std::vector<std::uint64_t> digests(std::string const& key, std::size_t count) const {
    auto const& text = at(key);
    auto const length = digest_text(saved_by, 0).size();
    if (text.size() / length != count || text.size() % length != 0)
      malformed(fmt::format("{} has not {} checksums", detail::quoted(key), count));
    std::vector<std::uint64_t> digests;
    for (std::size_t i = 0; i < count; ++i) {
      auto const digest = parse_digest(saved_by, std::string_view(text).substr(i * length, length));
      if (!digest) malformed(fmt::format("{} has what is no checksum", detail::quoted(key)));
      digests.push_back(*digest);
    }
    return digests;
  }

 private:
  std::map<std::string, std::string> const& metadata_;
  std::string const& path_;
};

void check_seal(std::string header, MetadataReader const& reader, std::string const& path) {
  auto const expected = parse_digest(saved_by, reader.at(std::string(header_key)));
  auto const mark = header.find(header_mark);
  if (!expected || mark == std::string::npos) reader.malformed("its header has no checksum");
  auto const length = digest_text(saved_by, 0).size();
  header.replace(mark + header_mark.size(), length, digest_text(saved_by, 0));
  auto const found = digest_of(saved_by, std::as_bytes(std::span(header)));
  if (found == *expected) return;
  throw IoError(path, 0,
                fmt::format("damaged: the header's checksum is {}, and it says {}", digest_text(saved_by, found),
                            digest_text(saved_by, *expected)));
}

}  // namespace

std::string element_text(std::string_view dtype, std::size_t bytes) {
  return dtype.empty() ? fmt::format("{} bytes", bytes) : std::string(dtype);
}

bool may_hold(std::string_view buffer_element, std::string_view file_element) noexcept {
  if (buffer_element == file_element) return true;
  auto const *const file = saved_type_called(file_element), *const buffer = saved_type_called(buffer_element);
  if (file == nullptr || buffer == nullptr || buffer->kind != TensorType::Kind::unsigned_integer) return false;
  bool const no_number = file->kind == TensorType::Kind::small_floating || file->kind == TensorType::Kind::boolean;
  return no_number && file->bytes == buffer->bytes;
}

std::string format_saved_state(SavedState const& state) {
  std::map<std::string, std::string> metadata;
  metadata.emplace(version_key, save_version);
  metadata.emplace(checksum_key, to_string(saved_by));
  metadata.emplace(block_key, std::to_string(state.block_bytes));
  metadata.emplace(header_key, digest_text(saved_by, 0));
  std::vector<SafetensorsEntry> entries;
  for (auto const& buffer : state.buffers) {
    if (!buffer.has_bytes) {
      metadata.emplace(keyed(empty_key, buffer.name), std::to_string(buffer.bytes));
      metadata.emplace(keyed(element_key, buffer.name), buffer.element);
      continue;
    }
    auto& entry = entries.emplace_back(saved_entry_of(buffer));
    metadata.emplace(keyed(digests_key, buffer.name), text_of(buffer.digests));
    if (entry.type->name != buffer.element) metadata.emplace(keyed(element_key, buffer.name), buffer.element);
  }
  return sealed(format_safetensors_header(entries, metadata));
}

SavedState parse_saved_state(std::string const& header, std::uint64_t data_bytes, std::string const& path) {
  auto parsed = parse_safetensors_header(std::string_view(header).substr(safetensors_prefix_bytes), data_bytes, path);
  MetadataReader const reader(parsed.metadata, path);
  SavedState state;
  state.checked =
      std::ranges::any_of(parsed.metadata, [](auto const& one) { return one.first.starts_with(own_prefix); });
  if (state.checked) {
    check_seal(header, reader, path);
    if (reader.at(std::string(version_key)) != save_version) reader.malformed("it is of another version");
    if (reader.at(std::string(checksum_key)) != to_string(saved_by)) reader.malformed("it has other checksums");
    state.block_bytes = reader.number(reader.at(std::string(block_key)));
    if (state.block_bytes == 0) reader.malformed("its checksums are of no bytes");
  }
  std::set<std::string, std::less<>> names;
  for (auto& entry : parsed.tensors) {
    names.insert(entry.name);
    SavedBuffer buffer;
    buffer.bytes = entry.end - entry.begin;
    buffer.offset = header.size() + entry.begin;
    buffer.element = entry.type->name;
    if (state.checked) {
      auto const blocks = buffer.bytes / state.block_bytes + (buffer.bytes % state.block_bytes == 0 ? 0 : 1);
      buffer.digests = reader.digests(keyed(digests_key, entry.name), blocks);
      if (auto const* const text = reader.find(keyed(element_key, entry.name))) buffer.element = *text;
    }
    buffer.shape = std::move(entry.shape);
    buffer.name = std::move(entry.name);
    state.buffers.push_back(std::move(buffer));
  }
  for (auto const& [key, text] : parsed.metadata) {
    if (!key.starts_with(empty_key)) continue;
    SavedBuffer buffer;
    buffer.name = key.substr(empty_key.size());
    if (names.contains(buffer.name))
      reader.malformed(fmt::format("{} has bytes, and has none", detail::quoted(buffer.name)));
    buffer.bytes = reader.number(text);
    buffer.element = reader.at(keyed(element_key, buffer.name));
    buffer.has_bytes = false;
    state.buffers.push_back(std::move(buffer));
  }
  return state;
}

}  // namespace unimem::detail
