#pragma once

#include "stream/safetensors.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace unimem::detail {

/// What nlohmann's parser tells of a `.safetensors` header, piece by piece: nothing is kept but what the header is to
/// have, and what it must not have ends the reading where it stands. Throws IoError.
class SafetensorsReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit SafetensorsReader(std::string const& path) : path_(path) {}

  /// What was read; the tensors in the order in which they stand.
  [[nodiscard]] SafetensorsHeader& header() noexcept { return header_; }

  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(number_integer_t value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t value, string_t const& text) override;
  bool string(string_t& value) override;
  bool binary(binary_t& value) override;
  bool start_object(std::size_t elements) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(std::size_t elements) override;
  bool end_array() override;
  bool parse_error(std::size_t position, std::string const& token, nlohmann::detail::exception const& error) override;

 private:
  /// Where in the header the parser is.
  enum class Place : std::uint8_t { outside, tensors, metadata, tensor, shape, offsets };

  [[noreturn]] void malformed(std::string_view what) const;
  [[noreturn]] void wrong_value(std::string_view what) const;
  void begin_tensor();
  void end_tensor();
  void take_dtype(std::string_view code);
  void name_is(std::string_view name) const;

  std::string const& path_;
  SafetensorsHeader header_;
  Place place_ = Place::outside;
  std::string key_;  ///< the last: of a tensor, of one of its three, or of the metadata
  bool has_metadata_ = false;
  bool has_shape_ = false;
  std::size_t offsets_ = 0;  ///< of this tensor, how many were read
};

}  // namespace unimem::detail
