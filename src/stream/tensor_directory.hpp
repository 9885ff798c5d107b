#pragma once

#include "stream/tensor_type.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

struct ByteSource;

/// Where a tensor lies in a file, and what it is.
struct TensorEntry {
  TensorType const* type = nullptr;
  std::vector<std::uint64_t> shape;  ///< outermost first; none for a scalar
  std::uint64_t offset = 0;          ///< of its first byte in the file
  std::uint64_t bytes = 0;
  std::string refused{};  ///< why it cannot be used, and then nothing else is known of it; empty: it can

  friend bool operator==(TensorEntry const&, TensorEntry const&) = default;
};

/// What is in a file of tensors.
struct TensorDirectory {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;  ///< of a `.safetensors`
};

/// The extensions of the files that `read_tensor_directory` knows.
[[nodiscard]] bool has_tensors(std::filesystem::path const& path);

/// Reads the directory of a file of tensors, a `.npy`, `.npz` or `.safetensors` by the extension of `path`, and nothing
/// of what they hold. A `.npy` has one tensor, which is called as the file is without its extension.
///
/// Throws IoError for malformed and unsupported files, InvalidArgument for another extension. A member of a `.npz` that
/// is well formed and not supported is listed, and `refused`: it does not keep others from being used.
[[nodiscard]] TensorDirectory read_tensor_directory(ByteSource const& source, std::filesystem::path const& path);

/// The entry of one tensor. Throws NotFound with the names there are (the first of them where there are many).
[[nodiscard]] TensorEntry const& find_tensor(TensorDirectory const& directory, std::string const& name,
                                             std::string_view path);

/// What messages call a tensor of a file: FILE#NAME, where the name may hold what no line of text should.
[[nodiscard]] std::string tensor_label(std::string const& path, std::string_view name);

}  // namespace unimem::detail
