#pragma once

#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/export.hpp>
#include <unimem/stream/file_buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace unimem {

struct Tensor;

namespace detail {

class TensorFile;

/// What a tensor is to be opened as. `bytes`: a type that is no number, or whose meaning is the caller's.
struct TensorElement {
  enum class Kind : std::uint8_t { bytes, boolean, unsigned_integer, signed_integer, floating };

  Kind kind = Kind::bytes;
  std::size_t size = 0;
};

template <class T>
[[nodiscard]] constexpr TensorElement tensor_element() noexcept {
  using Kind = TensorElement::Kind;
  if constexpr (std::is_same_v<T, bool>) return {Kind::boolean, sizeof(T)};
  if constexpr (std::is_floating_point_v<T>) return {Kind::floating, sizeof(T)};
  // Text and bytes in C++ are of `char`.
  if constexpr (!std::is_integral_v<T> || std::is_same_v<T, char>) return {Kind::bytes, sizeof(T)};
  return {std::is_signed_v<T> ? Kind::signed_integer : Kind::unsigned_integer, sizeof(T)};
}

[[nodiscard]] UNIMEM_API std::shared_ptr<BufferCore> buffer_core_from_tensor(Tensor const& tensor,
                                                                             TensorElement element,
                                                                             FileOptions const& options);

}  // namespace detail

/// An array in a file, by its name: what it is and where, and nothing of its contents before it is opened and looked
/// at. Made by `open_tensors`. It keeps that file open, and with it every tensor of it is of that very file: another
/// that has its name by then is not read.
struct Tensor {
  std::string name;
  /// NumPy's name: "bool", "uint8" … "int64", "float16", "float32", "float64", "complex64", "complex128", or that of
  /// its package ml_dtypes: "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
  /// "float8_e5m2fnuz".
  std::string dtype;
  std::size_t element_bytes = 0;
  std::vector<std::uint64_t> shape;  ///< outermost first; none for a scalar
  std::filesystem::path path;        ///< of the file, as it was given
  std::uint64_t offset = 0;          ///< of its first byte in the file
  std::uint64_t bytes = 0;           ///< the elements' together
  /// Why the library cannot open it; empty: it can. A member of a `.npz` that is of another dtype than the ones above,
  /// in Fortran order or another byte order: `dtype` is then empty, and only the name is known of it.
  std::string refused{};

  /// A buffer over it, of its shape, as `from_file` gives one over a whole file. It is called as the tensor is, unless
  /// `options` names it. The elements' values are the file's, whatever they are: a `bool` too.
  ///
  /// T is of the elements' size, and as a number of their kind: `bool` for bool, integers of the sign, `float` and
  /// `double`. What C++20 has no numbers for may be an unsigned integer of the size (float16, bfloat16, float8; bool as
  /// well) or, as every other dtype, what is no number: a structure, `std::byte`, `std::complex<float>`.
  ///
  /// Throws InvalidArgument for a T that does not fit, and names both; if the options have an offset or a count; and of
  /// a tensor that `open_tensors` has not made, or whose fields were changed since to what is not in the file. IoError
  /// if the tensor is `refused`, if the file was changed so that it is not what and where it was, and for
  /// FileMode::read_write if it cannot be opened for it by its path, or is another file by then. UnsupportedOperation
  /// for FileMode::read_write of a
  /// `.npz`, whose readers compare checksums that such a write would leave wrong.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> open(FileOptions const& options = {}) const {
    auto core = detail::buffer_core_from_tensor(*this, detail::tensor_element<T>(), options);
    return {Shape(std::vector<std::size_t>(shape.begin(), shape.end())), std::move(core)};
  }

  std::shared_ptr<detail::TensorFile> file{};  ///< the library's own
};

namespace detail {
/// What `open_tensors` and `read_tensor_metadata` give, of one look at the file.
struct TensorsOfFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};
[[nodiscard]] UNIMEM_API TensorsOfFile open_tensor_file(std::filesystem::path const& path);
/// What opening a tensor that is `refused` throws.
[[noreturn]] UNIMEM_API void throw_refused(Tensor const& tensor);
}  // namespace detail

/// The arrays of a file, by their names. By the path's extension it is
///
/// - a `.npy`: one array, which is called as the file is without `.npy`;
/// - a `.npz`: NumPy's archive of them, uncompressed (`numpy.savez`), called as in `numpy.load`. Members that are no
///   `.npy` are left out; checksums are not looked at, since nothing of the arrays is read;
/// - a `.safetensors`.
///
/// Elements are in C order and the machine's byte order. Names are keys, whatever is in them (`..`, `/`), and never
/// paths. Reads headers and directories alone; none is trusted: memory that is taken for them is bounded by their
/// bytes in the file, which end at 100 MB and 262144 arrays.
///
/// Throws IoError for a file that is missing, unreadable or not regular, one that is malformed in any way (also where
/// arrays overlap, or a `.safetensors` has bytes that are no array's), one that is compressed or encrypted, a `.npy` in
/// Fortran or another byte order or of another dtype than `Tensor::dtype` lists, and a `.safetensors` with such a
/// dtype; InvalidArgument for another extension. Such a member of a `.npz` is there, and `refused` when it is opened.
/// Thread-safe.
[[nodiscard]] UNIMEM_API std::map<std::string, Tensor> open_tensors(std::filesystem::path const& path);

/// The text that a `.safetensors` keeps beside its arrays (`__metadata__`); none of other files. Reads and throws as
/// `open_tensors` does. Thread-safe.
[[nodiscard]] UNIMEM_API std::map<std::string, std::string> read_tensor_metadata(std::filesystem::path const& path);

}  // namespace unimem
