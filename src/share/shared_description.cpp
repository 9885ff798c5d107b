#include "share/shared_description.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "process/peers.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

// Descriptions are CBOR, whose strings may be any bytes, as names may: written here, and read as it comes. A tree of
// nlohmann's allocates where it is destroyed, and ends the process where there is no memory for that.

namespace unimem::detail {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t this_version = 1;

enum class Field : std::uint8_t { buffer, bytes, element, element_bytes, name, shape, tag, version };
/// In the order in which they are written.
constexpr std::array<std::string_view, 8> keys{"buffer", "bytes", "element", "element_bytes",
                                               "name",   "shape", "tag",     "version"};

class Writer {
 public:
  void fields(std::size_t count) { head(5, count); }
  void key(Field field) { text(keys[static_cast<std::size_t>(field)]); }
  void text(std::string_view text) {
    head(3, text.size());
    bytes_ += text;
  }
  void number(std::uint64_t number) { head(0, number); }
  void numbers(std::size_t count) { head(4, count); }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  /// What comes, and its value or how many of it.
  void head(unsigned kind, std::uint64_t value) {
    constexpr unsigned in_the_head = 24;
    unsigned const width = value < in_the_head    ? 0
                           : value <= 0xff        ? 1
                           : value <= 0xffff      ? 2
                           : value <= 0xffff'ffff ? 4
                                                  : 8;
    auto const low = width == 0 ? static_cast<unsigned>(value) : in_the_head + (width > 1) + (width > 2) + (width > 4);
    bytes_ += static_cast<char>(kind << 5U | low);
    for (auto left = width; left-- != 0;) bytes_ += static_cast<char>(value >> 8U * left & 0xffU);
  }

  std::string bytes_;
};

/// Takes the fields up as they come; says false to what is none.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  SharedDescription described;
  std::uint64_t tag = 0, written_by = 0;
  [[nodiscard]] bool has_all() const noexcept { return found_ == (1U << keys.size()) - 1; }

  bool null() override { return false; }
  bool boolean(bool /*value*/) override { return false; }
  bool number_integer(std::int64_t /*value*/) override { return false; }
  bool number_float(double /*value*/, std::string const& /*text*/) override { return false; }
  bool binary(Json::binary_t& /*value*/) override { return false; }
  bool number_unsigned(std::uint64_t value) override {
    if (!field_) return false;
    switch (*field_) {
      case Field::bytes:
        described.bytes = value;
        return true;
      case Field::element_bytes:
        described.element_bytes = value;
        return true;
      case Field::tag:
        tag = value;
        return true;
      case Field::version:
        written_by = value;
        return true;
      case Field::shape:
        if (in_shape_) described.shape.push_back(value);
        return in_shape_;
      default:
        return false;
    }
  }
  bool string(std::string& value) override {
    auto* const text = field_ == Field::buffer    ? &described.buffer
                       : field_ == Field::element ? &described.element_name
                       : field_ == Field::name    ? &described.name
                                                  : nullptr;
    if (text != nullptr) *text = std::move(value);
    return text != nullptr;
  }
  bool start_object(std::size_t /*count*/) override { return !std::exchange(begun_, true); }
  bool end_object() override { return true; }
  bool key(std::string& name) override {
    auto const* const found = std::ranges::find(keys, name);
    if (found == keys.end()) return false;
    auto const number = static_cast<unsigned>(found - keys.begin());
    field_ = static_cast<Field>(number);
    bool const again = (found_ >> number & 1U) != 0;
    found_ |= 1U << number;
    return !again;
  }
  bool start_array(std::size_t /*count*/) override { return field_ == Field::shape && !std::exchange(in_shape_, true); }
  bool end_array() override {
    in_shape_ = false;
    field_.reset();
    return true;
  }
  bool parse_error(std::size_t /*at*/, std::string const& /*token*/, Json::exception const& /*error*/) override {
    return false;
  }

 private:
  std::optional<Field> field_;  ///< whose value comes
  unsigned found_ = 0;
  bool begun_ = false, in_shape_ = false;
};

/// The bytes that so many elements take; nothing where that is no size.
std::optional<std::size_t> size_of(SharedDescription const& described) {
  std::size_t bytes = described.element_bytes;
  for (auto const extent : described.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

std::string SharedDescription::encode() const {
  Writer to;
  to.fields(keys.size());
  to.key(Field::buffer), to.text(buffer);
  to.key(Field::bytes), to.number(bytes);
  to.key(Field::element), to.text(element_name);
  to.key(Field::element_bytes), to.number(element_bytes);
  to.key(Field::name), to.text(name);
  to.key(Field::shape), to.numbers(shape.size());
  for (auto const extent : shape) to.number(extent);
  to.key(Field::tag), to.number(static_cast<std::uint64_t>(tag));
  to.key(Field::version), to.number(this_version);
  auto encoded = to.take();
  if (encoded.size() > Peers::most_bytes) {
    throw InvalidArgument("names and shape", fmt::format("{} bytes in all", encoded.size()),
                          fmt::format("at most {} for other processes", Peers::most_bytes));
  }
  return encoded;
}

SharedDescription SharedDescription::decode(std::string_view bytes, std::string const& from) {
  auto const refuse = [&](char const* what) { throw IoError(from, EPROTO, what); };
  Reader read;
  bool const is_one = Json::sax_parse(bytes.begin(), bytes.end(), &read, Json::input_format_t::cbor) && read.has_all();
  if (!is_one) refuse("what it tells of a buffer is no description");
  if (read.written_by != this_version) refuse("it tells of a buffer as another version of the library does");
  auto& described = read.described;
  described.tag = static_cast<ElementTag>(read.tag);
  if (read.tag > 255 || to_string(described.tag) == "unknown") {
    refuse("it tells of elements that this version knows not");
  }
  if (described.element_bytes == 0 || size_of(described) != described.bytes) {
    refuse("what it tells of a buffer does not add up: shape, elements and size");
  }
  return std::move(described);
}

}  // namespace unimem::detail
