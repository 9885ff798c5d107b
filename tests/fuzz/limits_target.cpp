#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>

#include "fuzz/target.hpp"
#include "manager/environment_limits.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace unimem::fuzz {
namespace {

constexpr auto all = std::numeric_limits<std::size_t>::max();

/// The least of what the text says after one of two names, read by hand.
std::size_t least(std::string_view text, std::string_view one, std::string_view other) {
  std::size_t bytes = all;
  while (!text.empty()) {
    auto const part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    auto const sign = part.rfind('=');
    if (sign == std::string_view::npos) continue;
    if (auto const name = part.substr(0, sign); name == one || name == other) {
      bytes = std::min<std::size_t>(bytes, parse_size(part.substr(sign + 1)));
    }
  }
  return bytes;
}

}  // namespace

bool check_limits(std::string_view input) {
  detail::EnvironmentLimits limits;
  try {
    limits = detail::EnvironmentLimits(input);
  } catch (InvalidArgument const&) {
    return false;
  }
  auto const& cpu = device("cpu");
  // Blanks around the parts are left to the parser.
  if (input.find_first_of(" \t\n\r\v\f") != std::string_view::npos) return true;
  expect(limits.of(cpu, Location::pinned) == least(input, "cpu/pinned", "cpu/pinned"),
         "another limit of pinned memory");
  expect(limits.of_the_host() == least(input, "cpu", "cpu"), "another limit of the host");
  return true;
}

}  // namespace unimem::fuzz
