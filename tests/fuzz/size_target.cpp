#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "fuzz/target.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

namespace unimem::fuzz {
namespace {

/// The same by another way: in floating point, to a relative error of 1e-12 or one byte.
double estimate(std::string_view text) {
  std::string const whole(text);
  char* end = nullptr;
  double const number = std::strtod(whole.c_str(), &end);
  std::string_view unit = end;
  if (unit.ends_with('B')) unit.remove_suffix(1);
  bool const binary = unit.ends_with('i');
  if (binary) unit.remove_suffix(1);
  constexpr std::string_view units = "kMGTP";
  auto const letter = unit.empty() ? ' ' : unit[0] == 'K' ? 'k' : unit[0];
  auto const power = letter == ' ' ? 0 : units.find(letter) + 1;
  return number * std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power));
}

}  // namespace

bool check_size(std::string_view input) {
  std::uint64_t bytes = 0;
  try {
    bytes = parse_size(input, "what");
  } catch (InvalidArgument const& error) {
    expect(error.argument == "what", "the error names something else");
    return false;
  }
  expect(input.find_first_of("+- \t\n\r\v\f") == std::string_view::npos, "a sign or a blank was accepted");
  expect(input.find('\0') == std::string_view::npos, "a null character was accepted");
  auto const right = estimate(input), got = static_cast<double>(bytes);
  expect(std::abs(right - got) <= std::max(1.0, right * 1e-12), fmt::format("{} was read as {}", input, bytes));
  expect(parse_size(fmt::format("{}", bytes)) == bytes, "bytes alone mean something else");
  expect(parse_size(fmt::format("{}B", bytes)) == bytes, "bytes mean something else");
  return true;
}

}  // namespace unimem::fuzz
