#include <unimem/core/error.hpp>
#include <unimem/stream/tensors.hpp>

#include "core/quoted.hpp"
#include "stream/backed_core.hpp"
#include "stream/tensor_directory.hpp"
#include "stream/tensor_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace unimem {
namespace detail {
namespace {

TensorType const* type_called(std::string_view name) {
  auto const types = tensor_types();
  auto const found = std::ranges::find(types, name, &TensorType::name);
  return found == types.end() ? nullptr : &*found;
}

bool fits(TensorElement element, TensorType const& type) {
  using Asked = TensorElement::Kind;
  using Is = TensorType::Kind;
  if (element.size != type.bytes) return false;
  switch (element.kind) {
    case Asked::bytes:
      return true;
    case Asked::boolean:
      return type.kind == Is::boolean;
    case Asked::unsigned_integer:
      return type.kind == Is::unsigned_integer || type.kind == Is::boolean || type.kind == Is::small_floating;
    case Asked::signed_integer:
      return type.kind == Is::signed_integer;
    case Asked::floating:
      return type.kind == Is::floating || type.kind == Is::small_floating;
  }
  return false;
}

std::string to_string(TensorElement element) {
  using Kind = TensorElement::Kind;
  switch (element.kind) {
    case Kind::boolean:
      return "bool";
    case Kind::unsigned_integer:
      return fmt::format("unsigned integer of {} bytes", element.size);
    case Kind::signed_integer:
      return fmt::format("signed integer of {} bytes", element.size);
    case Kind::floating:
      return fmt::format("floating-point number of {} bytes", element.size);
    case Kind::bytes:
      break;
  }
  return fmt::format("type of {} bytes", element.size);
}

/// The same as a record, where it is one of the library's.
TensorEntry entry_of(Tensor const& tensor) {
  if (!tensor.refused.empty()) throw_refused(tensor);
  auto const* const type = type_called(tensor.dtype);
  if (!tensor.file || type == nullptr || type->bytes != tensor.element_bytes ||
      tensor_bytes(*type, tensor.shape) != tensor.bytes) {
    throw InvalidArgument("tensor", tensor.name, "as open_tensors has made it");
  }
  return {type, tensor.shape, tensor.offset, tensor.bytes, {}};
}

/// Of elements in memory: none of the library's types is aligned more strictly than this.
std::size_t alignment_of(TensorEntry const& entry) noexcept {
  return std::min(std::bit_floor(entry.type->bytes), sizeof(std::uint64_t));
}

}  // namespace

std::shared_ptr<BufferCore> buffer_core_from_tensor(Tensor const& tensor, TensorElement element,
                                                    FileOptions const& options) {
  auto const entry = entry_of(tensor);
  if (options.offset != 0) {
    throw InvalidArgument("offset", fmt::format("{}", options.offset), "left to the tensor, which knows its own");
  }
  if (options.count) {
    throw InvalidArgument("count", fmt::format("{}", *options.count), "left to the tensor: slice the buffer");
  }
  if (!fits(element, *entry.type)) {
    throw InvalidArgument("element type", to_string(element),
                          fmt::format("one for {} of {} bytes, as tensor {} of '{}' has", tensor.dtype,
                                      tensor.element_bytes, detail::quoted(tensor.name), tensor.path.string()));
  }
  auto const name = tensor.name.empty() ? tensor.path.filename().string() : tensor.name;
  return make_backed_core(tensor.file->open(tensor.name, entry, options.mode), {entry.offset, entry.bytes},
                          alignment_of(entry), options, name,
                          {tensor.dtype, tensor.element_bytes, {tensor.shape.begin(), tensor.shape.end()}});
}

void throw_refused(Tensor const& tensor) {
  throw IoError(tensor_label(tensor.path.string(), tensor.name), 0, tensor.refused);
}

TensorsOfFile open_tensor_file(std::filesystem::path const& path) {
  auto const file = std::make_shared<TensorFile>(path);
  auto directory = file->read();
  TensorsOfFile result;
  result.metadata = std::move(directory.metadata);
  while (!directory.tensors.empty()) {
    auto node = directory.tensors.extract(directory.tensors.begin());
    auto& [type, shape, offset, bytes, refused] = node.mapped();
    Tensor tensor;
    tensor.name = node.key();
    tensor.path = path;
    tensor.refused = std::move(refused);
    tensor.file = file;
    if (type != nullptr) {
      tensor.dtype = type->name;
      tensor.element_bytes = type->bytes;
      tensor.shape = std::move(shape);
      tensor.offset = offset;
      tensor.bytes = bytes;
    }
    result.tensors.emplace_hint(result.tensors.end(), std::move(node.key()), std::move(tensor));
  }
  return result;
}

}  // namespace detail

std::map<std::string, Tensor> open_tensors(std::filesystem::path const& path) {
  return detail::open_tensor_file(path).tensors;
}

std::map<std::string, std::string> read_tensor_metadata(std::filesystem::path const& path) {
  return detail::open_tensor_file(path).metadata;
}

}  // namespace unimem
