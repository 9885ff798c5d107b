#include "stream/tensor_directory.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "stream/byte_source.hpp"
#include "stream/npy.hpp"
#include "stream/npz.hpp"
#include "stream/safetensors.hpp"

#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

namespace unimem::detail {
namespace {

TensorEntry npy_entry(ByteSource const& source, std::uint64_t begin, std::uint64_t bytes) {
  auto header = read_npy_header(source, begin, bytes);
  if (header.shape.size() > most_tensor_extents) {
    throw UnsupportedNpy(source.name,
                         fmt::format("{} extents, of {} at most", header.shape.size(), most_tensor_extents));
  }
  return {header.type, std::move(header.shape), header.data_offset, header.data_bytes};
}

void read_npz(TensorDirectory& directory, ByteSource const& source) {
  auto member = source;  // errors of its header name it, too
  for (auto& [name, offset, bytes] : read_npz_members(source)) {
    member.name = tensor_label(source.name, name);
    TensorEntry entry;
    try {
      entry = npy_entry(member, offset, bytes);
    } catch (UnsupportedNpy const& error) {
      entry.refused = error.reason;
    }
    directory.tensors.emplace(std::move(name), std::move(entry));
  }
}

void read_safetensors(TensorDirectory& directory, ByteSource const& source) {
  std::array<std::byte, safetensors_prefix_bytes> prefix{};
  if (source.size >= prefix.size()) source.read(0, prefix);
  auto const bytes = safetensors_header_bytes(prefix, source.size, source.name);
  // Most of what is no such file is seen by its first byte, before there is memory for all of the header.
  std::string json(bytes == 0 ? 0 : 1, '\0');
  source.read(prefix.size(), std::as_writable_bytes(std::span{json}));
  if (json == "{") {
    json.resize(bytes);
    source.read(prefix.size(), std::as_writable_bytes(std::span{json}));
  }
  auto const data_begin = prefix.size() + bytes;
  auto header = parse_safetensors_header(json, source.size - data_begin, source.name);
  directory.metadata = std::move(header.metadata);
  for (auto& [name, type, shape, begin, end] : header.tensors) {
    directory.tensors.emplace(std::move(name), TensorEntry{type, std::move(shape), data_begin + begin, end - begin});
  }
}

}  // namespace

bool has_tensors(std::filesystem::path const& path) {
  auto const extension = path.extension();
  return extension == ".npy" || extension == ".npz" || extension == ".safetensors";
}

TensorDirectory read_tensor_directory(ByteSource const& source, std::filesystem::path const& path) {
  TensorDirectory directory;
  auto const extension = path.extension();
  if (extension == ".npy") {
    directory.tensors.emplace(path.stem().string(), npy_entry(source, 0, source.size));
  } else if (extension == ".npz") {
    read_npz(directory, source);
  } else if (extension == ".safetensors") {
    read_safetensors(directory, source);
  } else {
    throw InvalidArgument("path", source.name, "a file ending in .npy, .npz or .safetensors");
  }
  return directory;
}

std::string tensor_label(std::string const& path, std::string_view name) {
  auto const shown = detail::quoted(name);
  return fmt::format("{}#{}", path, std::string_view(shown).substr(1, shown.size() - 2));
}

TensorEntry const& find_tensor(TensorDirectory const& directory, std::string const& name, std::string_view path) {
  constexpr std::size_t most_shown = 16;
  auto const found = directory.tensors.find(name);
  if (found != directory.tensors.end()) return found->second;
  std::vector<std::string> available;
  for (auto const& [one, entry] : directory.tensors) {
    if (available.size() == most_shown) break;
    available.push_back(detail::quoted(one));
  }
  auto const more = directory.tensors.size() - available.size();
  throw NotFound("tensor", name, std::move(available),
                 more == 0 ? fmt::format("in {}", path) : fmt::format("and {} more in {}", more, path));
}

}  // namespace unimem::detail
