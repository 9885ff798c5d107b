#pragma once

#include "stream/tensor_type.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// A tensor of a `.safetensors`: `[begin, end)` are bytes of the data, which follow the header.
struct SafetensorsEntry {
  std::string name;
  TensorType const* type = nullptr;
  std::vector<std::uint64_t> shape;  ///< outermost first; none for a scalar
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator==(SafetensorsEntry const&, SafetensorsEntry const&) = default;
};

/// What the header of a `.safetensors` says: the tensors in the order of their bytes, and the text that is kept beside
/// them (`__metadata__`).
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;

  friend bool operator==(SafetensorsHeader const&, SafetensorsHeader const&) = default;
};

/// The length that the file begins with, in bytes.
inline constexpr std::size_t safetensors_prefix_bytes = 8;

/// The most that is read: the format's own bound for the header, and ours.
inline constexpr std::uint64_t longest_safetensors_header = 100'000'000;
inline constexpr std::size_t most_safetensors_tensors = std::size_t{1} << 18;
inline constexpr std::size_t longest_tensor_name = 0xFFFF;
inline constexpr std::size_t most_tensor_extents = 64;  ///< as NumPy has them

/// The length of the header that follows the prefix, from the first bytes of a file that has `file_bytes`. Throws
/// IoError naming `path` if it is longer than the file or than any may be, before anything is allocated.
[[nodiscard]] std::size_t safetensors_header_bytes(std::span<const std::byte> prefix, std::uint64_t file_bytes,
                                                   std::string const& path);

/// Reads a header, without its prefix; `data_bytes` follow it in the file. Strict, as the format demands: each name and
/// key once and no others, numbers that are counts, offsets that fit dtype and shape, and data without holes, overlaps
/// or anything after the last tensor. Memory taken is at most a few times that of `json`. Throws IoError naming `path`,
/// the tensor and what is wrong.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                         std::string const& path);

/// Prefix and header, padded with spaces so that the data begin at a multiple of 8 bytes, as the format's own writer
/// has it. The tensors are in the order of their bytes, without holes. Throws InvalidArgument for what `parse` would
/// refuse, UnsupportedOperation for a type that the format has not.
[[nodiscard]] std::string format_safetensors_header(std::span<const SafetensorsEntry> tensors,
                                                    std::map<std::string, std::string> const& metadata = {});

}  // namespace unimem::detail
