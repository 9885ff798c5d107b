#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace unimem::detail {

/// A file, or a tensor of one.
struct TensorPath {
  std::filesystem::path file;
  std::optional<std::string> tensor;
};

/// What a path of a stream means: `FILE#NAME` names a tensor where FILE ends in `.npy`, `.npz` or `.safetensors`. A
/// file whose own name the whole is wins, and of several `#` the first behind such a file that exists; both names may
/// have
/// `#` in them.
[[nodiscard]] TensorPath split_tensor_name(std::filesystem::path const& path);

/// Whether that names a `.npz` or `.safetensors` as a whole, and no tensor of it.
[[nodiscard]] bool names_whole_archive(std::filesystem::path const& path);

}  // namespace unimem::detail
