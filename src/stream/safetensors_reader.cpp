#include "stream/safetensors_reader.hpp"

#include <unimem/core/error.hpp>

#include "core/quoted.hpp"

#include <fmt/format.h>

#include <utility>

namespace unimem::detail {
namespace {

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::uint64_t largest_number = (std::uint64_t{1} << 63) - 1;

}  // namespace

void SafetensorsReader::malformed(std::string_view what) const {
  throw IoError(path_, 0, fmt::format("malformed .safetensors header: {}", what));
}

/// Something stands where it may not.
void SafetensorsReader::wrong_value(std::string_view what) const {
  switch (place_) {
    case Place::outside:
      malformed(fmt::format("{} in place of an object of tensors", what));
    case Place::tensors:
      malformed(fmt::format("{} in place of the object of {}", what, detail::quoted(key_)));
    case Place::metadata:
      malformed(fmt::format("{} in place of the text of {} in {}", what, detail::quoted(key_), metadata_key));
    default:
      malformed(fmt::format("{} in {} of tensor {}", what, key_, detail::quoted(header_.tensors.back().name)));
  }
}

bool SafetensorsReader::null() {
  wrong_value("null");
}
bool SafetensorsReader::boolean(bool value) {
  wrong_value(value ? "true" : "false");
}
bool SafetensorsReader::binary(binary_t& /*value*/) {
  wrong_value("binary data");
}
bool SafetensorsReader::number_float(number_float_t /*value*/, string_t const& text) {
  wrong_value(fmt::format("the number {}, which is no count below 2^63,", detail::quoted(text)));
}
bool SafetensorsReader::number_integer(number_integer_t value) {
  wrong_value(fmt::format("the negative number {}", value));
}

bool SafetensorsReader::number_unsigned(number_unsigned_t value) {
  if (place_ != Place::shape && place_ != Place::offsets) wrong_value(fmt::format("the number {}", value));
  if (value > largest_number) wrong_value(fmt::format("the number {}, which is no count below 2^63,", value));
  auto& tensor = header_.tensors.back();
  if (place_ == Place::shape) {
    if (tensor.shape.size() == most_tensor_extents) {
      wrong_value(fmt::format("more than {} extents", most_tensor_extents));
    }
    tensor.shape.push_back(value);
    return true;
  }
  if (offsets_ == 2) wrong_value("a third number");
  (offsets_++ == 0 ? tensor.begin : tensor.end) = value;
  return true;
}

bool SafetensorsReader::string(string_t& value) {
  if (place_ == Place::metadata) {
    if (!header_.metadata.emplace(key_, std::move(value)).second) {
      malformed(fmt::format("{} is in {} twice", detail::quoted(key_), metadata_key));
    }
    return true;
  }
  if (place_ != Place::tensor || key_ != "dtype") wrong_value("a string");
  take_dtype(value);
  return true;
}

void SafetensorsReader::take_dtype(std::string_view code) {
  auto& tensor = header_.tensors.back();
  if (tensor.type != nullptr) malformed(fmt::format("dtype of tensor {} is there twice", detail::quoted(tensor.name)));
  tensor.type = type_of_safetensors(code);
  if (tensor.type != nullptr) return;
  throw IoError(path_, 0,
                fmt::format("unsupported dtype {} of tensor {}", detail::quoted(code), detail::quoted(tensor.name)));
}

bool SafetensorsReader::start_object(std::size_t /*elements*/) {
  if (place_ == Place::outside) {
    place_ = Place::tensors;
    return true;
  }
  if (place_ != Place::tensors) wrong_value("an object");
  if (key_ != metadata_key) {
    begin_tensor();
    return true;
  }
  if (std::exchange(has_metadata_, true)) malformed(fmt::format("{} is there twice", metadata_key));
  place_ = Place::metadata;
  return true;
}

void SafetensorsReader::begin_tensor() {
  if (header_.tensors.size() == most_safetensors_tensors) {
    malformed(fmt::format("more than {} tensors", most_safetensors_tensors));
  }
  header_.tensors.push_back({std::move(key_), nullptr, {}, 0, 0});
  key_.clear();
  has_shape_ = false;
  offsets_ = 0;
  place_ = Place::tensor;
}

void SafetensorsReader::name_is(std::string_view name) const {
  if (name.size() > longest_tensor_name) {
    malformed(
        fmt::format("a name of {} bytes, of {} at most: {}", name.size(), longest_tensor_name, detail::quoted(name)));
  }
  if (name.find('\0') != std::string_view::npos) malformed(fmt::format("the name {} has a NUL", detail::quoted(name)));
}

bool SafetensorsReader::key(string_t& value) {
  if (place_ == Place::tensor && value != "dtype" && value != "shape" && value != "data_offsets") {
    malformed(
        fmt::format("unknown key {} of tensor {}", detail::quoted(value), detail::quoted(header_.tensors.back().name)));
  }
  if (place_ == Place::tensors) name_is(value);
  key_ = std::move(value);
  return true;
}

bool SafetensorsReader::end_object() {
  if (place_ == Place::tensor) end_tensor();
  place_ = place_ == Place::tensors ? Place::outside : Place::tensors;
  return true;
}

void SafetensorsReader::end_tensor() {
  auto const& tensor = header_.tensors.back();
  if (tensor.type == nullptr || !has_shape_ || offsets_ != 2) {
    malformed(fmt::format("tensor {} needs dtype, shape and two data_offsets", detail::quoted(tensor.name)));
  }
}

bool SafetensorsReader::start_array(std::size_t /*elements*/) {
  if (place_ != Place::tensor || key_ == "dtype") wrong_value("an array");
  bool const is_shape = key_ == "shape";
  if (is_shape ? std::exchange(has_shape_, true) : offsets_ != 0) {
    malformed(fmt::format("{} of tensor {} is there twice", key_, detail::quoted(header_.tensors.back().name)));
  }
  place_ = is_shape ? Place::shape : Place::offsets;
  return true;
}

bool SafetensorsReader::end_array() {
  if (place_ == Place::offsets && offsets_ != 2) wrong_value(fmt::format("{} numbers in place of two", offsets_));
  place_ = Place::tensor;
  return true;
}

bool SafetensorsReader::parse_error(std::size_t position, std::string const& /*token*/,
                                    nlohmann::detail::exception const& /*error*/) {
  malformed(fmt::format("no JSON at its byte {}", position));
}

}  // namespace unimem::detail
