#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "fuzz/target.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

namespace unimem::fuzz {
namespace {

__extension__ using Wide = unsigned __int128;
constexpr Wide too_large = Wide{1} << 64U;

/// The same by long multiplication from the left, 15 digits of the fraction at a time, until a remainder can no longer
/// carry.
std::optional<std::uint64_t> expected_size(std::string_view text) {
  auto const digits_at = [&](std::size_t from) {
    return std::min(text.find_first_not_of("0123456789", from), text.size()) - from;
  };
  auto const whole = text.substr(0, digits_at(0));
  auto rest = text.substr(whole.size());
  std::string fraction;
  if (rest.starts_with('.')) {
    fraction = rest.substr(1, digits_at(whole.size() + 1));
    if (fraction.empty()) return std::nullopt;
    rest.remove_prefix(1 + fraction.size());
  }
  if (whole.empty()) return std::nullopt;
  Wide unit = 0;
  if (rest.empty() || rest == "B") unit = 1;
  if (rest.size() == 2 && rest[1] == 'B') {
    auto const power = rest[0] == 'k' ? 1 : std::string_view(" KMGTP").find(rest[0]);
    if (power == 0 || power == std::string_view::npos) return std::nullopt;
    unit = 1;
    for (std::size_t i = 0; i < power; ++i) unit *= 1000;
  }
  if (rest.size() == 3 && rest.substr(1) == "iB") {
    auto const power = std::string_view(" KMGTP").find(rest[0]);
    if (power == 0 || power == std::string_view::npos) return std::nullopt;
    unit = Wide{1} << (10 * power);
  }
  if (unit == 0) return std::nullopt;
  if (unit == 1 && fraction.find_first_not_of('0') != std::string::npos) return std::nullopt;

  Wide bytes = 0;
  for (char const c : whole) {
    bytes = bytes * 10 + static_cast<unsigned>(c - '0');
    if (bytes >= too_large) return std::nullopt;
  }
  if (bytes * unit >= too_large) return std::nullopt;
  bytes *= unit;
  // A trailing chunk is padded with zeros. Of each chunk the whole part goes to the one before it.
  constexpr std::size_t chunk = 15;
  constexpr std::uint64_t chunk_scale = 1'000'000'000'000'000;
  fraction.resize((fraction.size() + chunk - 1) / chunk * chunk, '0');
  Wide carry = 0;
  for (auto at = fraction.size(); at != 0; at -= chunk) {
    carry = (std::stoull(fraction.substr(at - chunk, chunk)) * unit + carry) / chunk_scale;
  }
  bytes += carry;
  if (bytes >= too_large) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

void check_format(std::uint64_t bytes) {
  auto text = format_size(bytes);
  auto const blank = text.find(' ');
  require(blank != std::string::npos, "a size for people has no unit");
  bool const exact = text.find('.') == std::string::npos;
  auto const number = text.substr(0, blank);
  auto const power = std::string_view("BKMGTPE").find(text[blank + 1]);
  require(power != std::string_view::npos, "a size for people has another unit");
  auto const value = std::stold(number);
  auto const scale = std::ldexp(1.0L, static_cast<int>(10 * power));
  require(value < 1024, "1024 of a unit are one of the next");
  require(bytes < 1024 || value >= 1, "a size for people is below its unit");
  require(std::abs(value * scale - static_cast<long double>(bytes)) <= (exact ? 0 : 0.00501L * scale),
          "a size for people is another one");
  text.erase(blank, 1);
  if (exact && power < 6) require(parse_size(text) == bytes, "a whole size for people reads as another");
}

bool run_size(std::string_view input) {
  auto const size = taken<InvalidArgument>([&] {
    try {
      return parse_size(input, "limit");
    } catch (InvalidArgument const& refusal) {
      require(refusal.argument == "limit" && refusal.value == input, "a refusal names another value");
      throw;
    }
  });
  require(size == expected_size(input), "a size is another than long multiplication says");
  if (!size) return false;
  require(parse_size(std::to_string(*size)) == *size && parse_size(std::to_string(*size) + "B") == *size,
          "a size is another when it is written in bytes");
  check_format(*size);
  return true;
}

Enlisted const size_target{{"size", run_size}};

}  // namespace
}  // namespace unimem::fuzz
