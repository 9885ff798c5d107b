#include "stream/npy.hpp"

#include "core/quoted.hpp"
#include "stream/byte_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

namespace unimem::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "'<' below means the machine's own byte order");

constexpr std::string_view npy_magic = "\x93NUMPY";

/// Reads the one Python literal a header is: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string const& path) : rest_(text), path_(path) {}

  NpyHeader read() {
    expect('{');
    while (!accept('}')) {
      read_entry();
      if (accept('}')) break;
      expect(',');
    }
    if (rest_.find_first_not_of(" \n") != std::string_view::npos) malformed("something follows the dictionary");
    if (type_ == nullptr || !has_order_ || !has_shape_) malformed("descr, fortran_order and shape are needed");
    auto const bytes = tensor_bytes(*type_, shape_);
    if (!bytes) malformed("the shape does not fit 64 bits");
    return {type_, std::move(shape_), 0, *bytes};
  }

 private:
  [[noreturn]] void malformed(std::string_view what) const {
    throw IoError(path_, 0, fmt::format("malformed .npy header: {}", what));
  }
  [[noreturn]] void unsupported(std::string_view what) const { throw UnsupportedNpy(path_, what); }

  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }

  bool accept(char c) {
    skip_blanks();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) malformed(fmt::format("'{}' expected", c));
  }
  bool accept(std::string_view word) {
    skip_blanks();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::string_view read_string() {
    skip_blanks();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) malformed("a quoted string expected");
    auto const end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) malformed("a string does not end");
    auto const text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return text;
  }

  void read_entry() {
    auto const key = read_string();
    expect(':');
    if (key == "descr") {
      if (type_ != nullptr) malformed("descr is there twice");
      read_descr();
    } else if (key == "fortran_order") {
      if (has_order_) malformed("fortran_order is there twice");
      has_order_ = true;
      if (accept("True")) unsupported("Fortran order");
      if (!accept("False")) malformed("fortran_order is neither True nor False");
    } else if (key == "shape") {
      if (has_shape_) malformed("shape is there twice");
      has_shape_ = true;
      read_shape();
    } else {
      malformed(fmt::format("unknown key {}", quoted(key)));
    }
  }

  void read_descr() {
    skip_blanks();
    if (!rest_.empty() && (rest_.front() == '[' || rest_.front() == '(')) unsupported("structured dtype");
    auto const descr = read_string();
    if (descr.empty()) malformed("descr is empty");
    bool const ordered = std::string_view("<>|=").find(descr.front()) != std::string_view::npos;
    auto const code = ordered ? descr.substr(1) : descr;
    auto const* const type = type_of_npy(code);
    if (type == nullptr) unsupported(fmt::format("dtype {}", quoted(descr)));
    if (descr.front() == '>' && type->bytes > 1) unsupported(fmt::format("big-endian dtype '{}'", descr));
    type_ = type;
  }

  void read_shape() {
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      std::uint64_t extent = 0;
      auto const [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), extent);
      if (error == std::errc::result_out_of_range) malformed("an extent does not fit 64 bits");
      if (error != std::errc()) malformed("a shape is a tuple of counts");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      shape_.push_back(extent);
      if (accept(')')) {
        // `(3)` is a number in Python, and no NumPy writes it.
        if (shape_.size() == 1) malformed("a shape is a tuple of counts");
        return;
      }
      expect(',');
    }
  }

  std::string_view rest_;
  std::string const& path_;
  TensorType const* type_ = nullptr;
  std::vector<std::uint64_t> shape_;
  bool has_order_ = false;
  bool has_shape_ = false;
};

struct Prefix {
  std::size_t begin = 0;  // of the dictionary
  std::size_t bytes = 0;  // of the dictionary, padding included
};

Prefix read_prefix(std::span<const std::byte> data, std::string const& path) {
  auto const byte = [&](std::size_t i) { return std::to_integer<std::size_t>(data[i]); };
  if (data.size() < npy_magic.size() + 2 || std::memcmp(data.data(), npy_magic.data(), npy_magic.size()) != 0) {
    throw IoError(path, 0, "malformed .npy header: it does not begin as a .npy file does");
  }
  auto const major = byte(6);
  auto const minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    throw UnsupportedNpy(path, fmt::format("format version {}.{}", major, minor));
  }
  std::size_t const begin = major == 1 ? 10 : 12;
  if (data.size() < begin) throw IoError(path, 0, "malformed .npy header: the file ends within it");
  auto bytes = byte(8) | byte(9) << 8;
  if (major > 1) bytes |= byte(10) << 16 | byte(11) << 24;
  return {begin, bytes};
}

}  // namespace

UnsupportedNpy::UnsupportedNpy(std::string const& path_, std::string_view what)
    : IoError(path_, 0, fmt::format("unsupported .npy: {}", what)), reason(fmt::format("unsupported .npy: {}", what)) {}

std::size_t npy_header_bytes(std::span<const std::byte> prefix, std::string const& path) {
  auto const [begin, bytes] = read_prefix(prefix, path);
  if (begin + bytes > longest_npy_header) {
    throw IoError(path, 0, fmt::format("malformed .npy header: {} bytes long", bytes));
  }
  return begin + bytes;
}

NpyHeader parse_npy_header(std::span<const std::byte> header, std::string const& path) {
  auto const [begin, bytes] = read_prefix(header, path);
  if (header.size() != begin + bytes) throw IoError(path, 0, "malformed .npy header: the file ends within it");
  auto const text = std::string_view(reinterpret_cast<char const*>(header.data()), header.size()).substr(begin);
  auto result = HeaderReader(text, path).read();
  result.data_offset = header.size();
  return result;
}

NpyHeader read_npy_header(ByteSource const& source, std::uint64_t begin, std::uint64_t bytes) {
  std::array<std::byte, npy_prefix_bytes> prefix{};
  auto const first = std::span{prefix}.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, prefix.size())));
  source.read(begin, first);
  auto const header_bytes = npy_header_bytes(first, source.name);
  std::vector<std::byte> header(static_cast<std::size_t>(std::min<std::uint64_t>(header_bytes, bytes)));
  source.read(begin, header);
  auto result = parse_npy_header(header, source.name);
  if (bytes - result.data_offset != result.data_bytes) {
    throw IoError(source.name, 0,
                  fmt::format("malformed .npy: its header announces {} bytes of data, and {} follow", result.data_bytes,
                              bytes - result.data_offset));
  }
  result.data_offset += begin;
  return result;
}

ElementType element_of(NpyHeader const& header, std::string const& path) {
  if (header.type->element) return *header.type->element;
  throw IoError(path, 0,
                fmt::format("unsupported .npy: dtype '{}{}', of which a stream knows nothing",
                            header.type->bytes == 1 ? '|' : '<', header.type->npy));
}

std::string format_npy_header(ElementType element, std::span<const std::uint64_t> shape) {
  return format_npy_header(type_of_element(element), shape);
}

std::string format_npy_header(TensorType const& type, std::span<const std::uint64_t> shape) {
  auto text =
      fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': (", type.bytes == 1 ? '|' : '<', type.npy);
  for (std::size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  text += shape.size() == 1 ? ",), }" : "), }";

  auto const padded = [&](std::size_t begin) { return (begin + text.size() + 1 + 63) / 64 * 64; };
  bool const short_enough = padded(10) - 10 <= 0xFFFF;
  std::size_t const begin = short_enough ? 10 : 12;
  auto const total = padded(begin);
  auto const bytes = total - begin;
  std::string header(npy_magic);
  header += short_enough ? '\1' : '\2';
  header += '\0';
  for (std::size_t i = 0; i < begin - 8; ++i) header += static_cast<char>(bytes >> (8 * i) & 0xFFU);
  header += text;
  header.resize(total - 1, ' ');
  header += '\n';
  return header;
}

}  // namespace unimem::detail
