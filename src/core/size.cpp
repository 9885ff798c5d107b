#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include <fmt/format.h>

#include <array>
#include <bit>
#include <ranges>

namespace unimem {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::array units{
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"kB", 1000},
    Unit{"KB", 1000},
    Unit{"KiB", 1ULL << 10},
    Unit{"MB", 1000ULL * 1000},
    Unit{"MiB", 1ULL << 20},
    Unit{"GB", 1000ULL * 1000 * 1000},
    Unit{"GiB", 1ULL << 30},
    Unit{"TB", 1000ULL * 1000 * 1000 * 1000},
    Unit{"TiB", 1ULL << 40},
    Unit{"PB", 1000ULL * 1000 * 1000 * 1000 * 1000},
    Unit{"PiB", 1ULL << 50},
};

__extension__ using Wide = unsigned __int128;

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Decimal digits to an integer, exactly; false when they do not fit 64 bits.
bool read_digits(std::string_view digits, std::uint64_t& value) {
  value = 0;
  for (char const c : digits) {
    if (__builtin_mul_overflow(value, std::uint64_t{10}, &value)) return false;
    if (__builtin_add_overflow(value, static_cast<std::uint64_t>(c - '0'), &value)) return false;
  }
  return true;
}

}  // namespace

std::uint64_t parse_size(std::string_view text, std::string_view what) {
  auto const refuse = [&](char const* requirement) {
    return InvalidArgument(std::string(what), std::string(text), requirement);
  };
  constexpr auto form = "a size such as 4096, 64KiB, 1.5GiB or 12GB";

  std::size_t at = 0;
  while (at < text.size() && is_digit(text[at])) ++at;
  auto const whole_digits = text.substr(0, at);
  std::string_view fraction_digits;
  if (at < text.size() && text[at] == '.') {
    auto const begin = ++at;
    while (at < text.size() && is_digit(text[at])) ++at;
    fraction_digits = text.substr(begin, at - begin);
    if (fraction_digits.empty()) throw refuse(form);
  }
  if (whole_digits.empty()) throw refuse(form);

  auto const suffix = text.substr(at);
  for (auto const& unit : units) {
    if (unit.name != suffix) continue;
    constexpr auto too_large = "below 16 EiB";
    std::uint64_t bytes = 0;
    if (!read_digits(whole_digits, bytes) || __builtin_mul_overflow(bytes, unit.bytes, &bytes)) throw refuse(too_large);
    // The fraction in integers, digit by digit from the right: 0.1 GiB has no exact double, and a size is a promise.
    // Cutting to whole bytes at each digit is cutting once at the end, since what is added at each is whole.
    std::uint64_t fraction = 0;
    bool any = false;
    for (char const digit : fraction_digits | std::views::reverse) {
      fraction = (static_cast<std::uint64_t>(digit - '0') * unit.bytes + fraction) / 10;
      any |= digit != '0';
    }
    if (any && unit.bytes == 1) throw refuse("a whole number of bytes");
    if (__builtin_add_overflow(bytes, fraction, &bytes)) throw refuse(too_large);
    return bytes;
  }
  throw refuse(form);
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array names{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (unit + 1 < names.size() && (bytes >> (10 * (unit + 1))) != 0) ++unit;
  auto const scale = std::uint64_t{1} << (10 * unit);
  if (bytes % scale == 0) return fmt::format("{} {}", bytes / scale, names[unit]);
  auto value = static_cast<double>(bytes) / static_cast<double>(scale);
  if (value >= 1023.995 && unit + 1 < names.size()) value /= 1024, ++unit;  // "1.00 MiB", not "1024.00 KiB"
  return fmt::format("{:.2f} {}", value, names[unit]);
}

std::size_t checked_multiply(std::size_t a, std::size_t b, std::string_view what, std::string_view unit) {
  std::size_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    throw InvalidArgument(std::string(what), fmt::format("{} x {}", a, b), fmt::format("below 2^64 {}", unit));
  }
  return result;
}

std::size_t checked_add(std::size_t a, std::size_t b, std::string_view what) {
  std::size_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    throw InvalidArgument(std::string(what), fmt::format("{} + {}", a, b), "below 2^64 bytes");
  }
  return result;
}

void check_window(std::size_t offset, std::size_t count, std::size_t size) {
  if (offset > size) throw InvalidArgument("offset", fmt::format("{}", offset), fmt::format("at most {}", size));
  if (count > size - offset) {
    throw InvalidArgument("count", fmt::format("{}", count),
                          fmt::format("at most {} from offset {} in {}", size - offset, offset, size));
  }
}

std::size_t round_up(std::size_t value, std::size_t alignment) {
  return checked_add(value, alignment - 1, "rounded size") & ~(alignment - 1);
}

void check_alignment(std::size_t alignment, std::size_t most) {
  if (!std::has_single_bit(alignment) || alignment > most) {
    throw InvalidArgument("alignment", fmt::format("{}", alignment), fmt::format("a power of two up to {}", most));
  }
}

}  // namespace unimem
