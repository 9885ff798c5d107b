#include "stream/tensor_path.hpp"

#include "stream/tensor_directory.hpp"

#include <system_error>

namespace unimem::detail {
namespace {

bool is_there(std::filesystem::path const& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

TensorPath split_tensor_name(std::filesystem::path const& path) {
  auto const text = path.string();
  std::optional<TensorPath> first;
  for (auto at = text.find('#'); at != std::string::npos; at = text.find('#', at + 1)) {
    TensorPath named{text.substr(0, at), text.substr(at + 1)};
    if (!has_tensors(named.file)) continue;
    if (!first && is_there(path)) break;
    if (is_there(named.file)) return named;
    if (!first) first = named;
  }
  // Of what is not there, the error names what the first may have meant.
  return first.value_or(TensorPath{path, std::nullopt});
}

bool names_whole_archive(std::filesystem::path const& path) {
  auto const [file, tensor] = split_tensor_name(path);
  return !tensor && has_tensors(file) && file.extension() != ".npy";
}

}  // namespace unimem::detail
