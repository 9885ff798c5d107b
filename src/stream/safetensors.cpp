#include "stream/safetensors.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"
#include "stream/safetensors_reader.hpp"
#include "stream/utf8.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace unimem::detail {
namespace {

/// The data are indexed entirely: what one tensor does not begin at is a hole, or another's. Throws with what is wrong,
/// by `fail`.
template <class Fail>
void check_layout(std::span<const SafetensorsEntry> tensors, Fail fail) {
  std::uint64_t at = 0;
  for (auto const& tensor : tensors) {
    auto const name = detail::quoted(tensor.name);
    auto const bytes = tensor_bytes(*tensor.type, tensor.shape);
    if (!bytes) fail(fmt::format("the shape of tensor {} does not fit 64 bits", name));
    if (tensor.end < tensor.begin) fail(fmt::format("tensor {} ends before it begins", name));
    if (tensor.end - tensor.begin != *bytes) {
      fail(fmt::format("tensor {} has {} bytes, and its dtype and shape take {}", name, tensor.end - tensor.begin,
                       *bytes));
    }
    if (tensor.begin < at) fail(fmt::format("tensor {} begins at byte {}, within another", name, tensor.begin));
    if (tensor.begin > at) {
      fail(fmt::format("no tensor has bytes [{}, {}) of the data, in front of {}", at, tensor.begin, name));
    }
    at = tensor.end;
  }
}

template <class Fail>
void check_unique(std::span<const SafetensorsEntry> tensors, Fail fail) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (auto const& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  auto const twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) fail(fmt::format("tensor {} is there twice", detail::quoted(*twice)));
}

std::string json_text(std::string const& text, char const* argument) {
  if (!is_utf8(text)) throw InvalidArgument(argument, detail::quoted(text), "UTF-8");
  return nlohmann::json(text).dump();
}

std::string json_of(SafetensorsEntry const& tensor) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_text(tensor.name, "name"),
                     tensor.type->safetensors, fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
}

void check_name(std::string const& name) {
  if (name == "__metadata__" || name.find('\0') != std::string::npos || name.size() > longest_tensor_name) {
    throw InvalidArgument(
        "name", detail::quoted(name),
        fmt::format("another than __metadata__, without NUL, and of {} bytes at most", longest_tensor_name));
  }
}

}  // namespace

std::size_t safetensors_header_bytes(std::span<const std::byte> prefix, std::uint64_t file_bytes,
                                     std::string const& path) {
  if (prefix.size() < safetensors_prefix_bytes || file_bytes < safetensors_prefix_bytes) {
    throw IoError(path, 0, fmt::format("malformed .safetensors: {} bytes are no length of a header", file_bytes));
  }
  std::uint64_t bytes = 0;
  for (std::size_t i = safetensors_prefix_bytes; i > 0; --i) {
    bytes = bytes << 8U | std::to_integer<std::uint64_t>(prefix[i - 1]);
  }
  if (bytes > longest_safetensors_header) {
    throw IoError(
        path, 0,
        fmt::format("malformed .safetensors: a header of {} bytes, of {} at most", bytes, longest_safetensors_header));
  }
  if (bytes > file_bytes - safetensors_prefix_bytes) {
    throw IoError(path, 0,
                  fmt::format("malformed .safetensors: a header of {} bytes, and the file has {} after its length",
                              bytes, file_bytes - safetensors_prefix_bytes));
  }
  return static_cast<std::size_t>(bytes);
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes, std::string const& path) {
  auto const malformed = [&](std::string_view what) {
    throw IoError(path, 0, fmt::format("malformed .safetensors header: {}", what));
  };
  if (!json.starts_with('{')) malformed("it does not begin with '{'");
  // The parser would take it for the end.
  if (auto const at = json.find('\0'); at != std::string_view::npos) malformed(fmt::format("a NUL at its byte {}", at));
  SafetensorsReader reader(path);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  auto result = std::move(reader.header());

  auto& tensors = result.tensors;
  check_unique(tensors, malformed);
  std::ranges::sort(tensors, {}, [](SafetensorsEntry const& one) { return std::pair{one.begin, one.end}; });
  check_layout(tensors, malformed);
  auto const end = tensors.empty() ? 0 : tensors.back().end;
  if (end != data_bytes) {
    malformed(fmt::format("its tensors take {} bytes, and {} follow it", end, data_bytes));
  }
  return result;
}

std::string format_safetensors_header(std::span<const SafetensorsEntry> tensors,
                                      std::map<std::string, std::string> const& metadata) {
  for (auto const& tensor : tensors) {
    check_name(tensor.name);
    if (!tensor.type->safetensors.empty()) continue;
    throw UnsupportedOperation(
        fmt::format("a tensor of {}", tensor.type->name), ".safetensors",
        fmt::format("the format has no such dtype, which {} is of", detail::quoted(tensor.name)));
  }
  auto const refuse = [](std::string const& what) {
    throw InvalidArgument("tensors", what, "each by its own name, one behind another");
  };
  check_unique(tensors, refuse);
  check_layout(tensors, refuse);

  std::string json = "{";
  auto const separate = [&] { json += json.size() == 1 ? "" : ","; };
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    char const* between = "";
    for (auto const& [key, text] : metadata) {
      json +=
          fmt::format("{}{}:{}", std::exchange(between, ","), json_text(key, "metadata"), json_text(text, "metadata"));
    }
    json += '}';
  }
  for (auto const& tensor : tensors) {
    separate();
    json += json_of(tensor);
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > longest_safetensors_header || tensors.size() > most_safetensors_tensors) {
    throw InvalidArgument(
        "tensors", fmt::format("{} with a header of {} bytes", tensors.size(), json.size()),
        fmt::format("at most {} with one of {}", most_safetensors_tensors, longest_safetensors_header));
  }
  std::string header;
  for (std::size_t i = 0; i < safetensors_prefix_bytes; ++i) {
    header += static_cast<char>(json.size() >> (8 * i) & 0xFFU);
  }
  return header + json;
}

}  // namespace unimem::detail
