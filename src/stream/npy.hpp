#pragma once

#include <unimem/core/error.hpp>
#include <unimem/stream/element_type.hpp>

#include "stream/tensor_type.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

struct ByteSource;

/// A `.npy` of what is not supported: it is well formed as far as it was read, and others may well read it.
class UnsupportedNpy : public IoError {
 public:
  UnsupportedNpy(std::string const& path, std::string_view what);

  std::string reason;  ///< the message without the path
};

/// What the header of a `.npy` file says (format: numpy.lib.format, versions 1.0 to 3.0).
struct NpyHeader {
  TensorType const* type = nullptr;
  std::vector<std::uint64_t> shape;  ///< outermost first; none for a scalar
  std::uint64_t data_offset = 0;     ///< where the elements begin
  std::uint64_t data_bytes = 0;      ///< and how many bytes they take

  friend bool operator==(NpyHeader const&, NpyHeader const&) = default;
};

/// The longest header read, magic included: what NumPy writes for plain arrays is 128 bytes, and a length field of
/// rubbish shall not make us read gigabytes.
inline constexpr std::size_t longest_npy_header = std::size_t{1} << 20;

/// Bytes from the start of the file that tell how long the header is.
inline constexpr std::size_t npy_prefix_bytes = 12;

/// The length of the whole header, magic included, from the first `npy_prefix_bytes` bytes of a file (or all of a
/// shorter one). Throws IoError naming `path` if these cannot begin a `.npy` of a known version, or announce more than
/// `longest_npy_header`.
[[nodiscard]] std::size_t npy_header_bytes(std::span<const std::byte> prefix, std::string const& path);

/// Reads a header of exactly that length. Strict: three keys, each once, nothing after them but padding. Throws IoError
/// naming `path` and what is wrong: malformed, or as UnsupportedNpy Fortran order, another byte order than the
/// machine's, or a dtype that the table of tensor types has not.
[[nodiscard]] NpyHeader parse_npy_header(std::span<const std::byte> header, std::string const& path);

/// Reads the header of a `.npy` that is `bytes` long and begins at `begin`: a file, or a member of one. `data_offset`
/// is then from the beginning of `source` on. Throws IoError as above, and where the data are more or fewer than
/// announced.
[[nodiscard]] NpyHeader read_npy_header(ByteSource const& source, std::uint64_t begin, std::uint64_t bytes);

/// What a stream takes the elements for. Throws IoError for a dtype that is no ElementType.
[[nodiscard]] ElementType element_of(NpyHeader const& header, std::string const& path);

/// A version 1.0 header, padded to a multiple of 64 bytes as NumPy does (2.0 should a shape need more than 64 KiB).
/// `type` is one that the format has.
[[nodiscard]] std::string format_npy_header(TensorType const& type, std::span<const std::uint64_t> shape);
[[nodiscard]] std::string format_npy_header(ElementType element, std::span<const std::uint64_t> shape);

}  // namespace unimem::detail
