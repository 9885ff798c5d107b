#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>

#include "fuzz/target.hpp"
#include "manager/environment_limits.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

namespace unimem::fuzz {
namespace {

constexpr std::array<std::string_view, 4> location_names{"device", "host", "pinned", "unified"};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0;;) {
    auto const end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

bool names_device(std::string_view id) {
  if (id == "cpu") return true;
  auto const parts = split(id, ':');
  constexpr std::array<std::string_view, 4> kinds{"sim", "opencl", "cuda", "metal"};
  return parts.size() == 2 && std::ranges::find(kinds, parts[0]) != kinds.end() && !parts[1].empty() &&
         parts[1].find_first_not_of("0123456789") == std::string_view::npos;
}

/// Bytes by "DEVICE/LOCATION"; "cpu" is all of the host's.
using Limits = std::map<std::string, std::size_t, std::less<>>;

std::optional<Limits> expected_limits(std::string_view text) {
  Limits limits;
  auto entries = split(text, ';');
  if (entries.back().empty()) entries.pop_back();  // a last ';' says nothing
  for (auto const entry : entries) {
    auto const equals = entry.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    auto const place = entry.substr(0, equals);
    auto const slash = place.find('/');
    if (!names_device(place.substr(0, slash))) return std::nullopt;
    std::string key(place);
    if (slash != std::string_view::npos) {
      auto const location = place.substr(slash + 1);
      if (std::ranges::find(location_names, location) == location_names.end()) return std::nullopt;
      // The host's memory is the cpu's, whatever device is named.
      if (location == "host" || location == "pinned") key = "cpu/" + std::string(location);
    } else if (place != "cpu") {
      key += "/device";
    }
    auto const bytes = taken<InvalidArgument>([&] { return parse_size(entry.substr(equals + 1)); });
    if (!bytes) return std::nullopt;
    auto& least = limits.try_emplace(key, std::numeric_limits<std::size_t>::max()).first->second;
    least = std::min<std::size_t>(least, *bytes);
  }
  return limits;
}

bool run_limits(std::string_view input) {
  auto const found = taken<InvalidArgument>([&] { return detail::EnvironmentLimits(input); });
  auto const expected = expected_limits(input);
  require(found.has_value() == expected.has_value(),
          found ? "limits were taken that say nothing" : "limits were refused that say something");
  if (!found) return false;
  auto const told = [&](std::string_view key) {
    auto const at = expected->find(key);
    return at == expected->end() ? std::numeric_limits<std::size_t>::max() : at->second;
  };
  require(found->of_the_host() == told("cpu"), "the limit of the host is another");
  static std::array<Device*, 2> const devices{&device("cpu"), &device("sim:memory=1MiB")};
  for (auto const* device : devices) {
    auto const id = std::string(device->id().substr(0, device->id().find(',')));
    for (std::size_t i = 0; i < location_names.size(); ++i) {
      require(found->of(*device, static_cast<Location>(i)) == told(id + '/' + std::string(location_names[i])),
              "a limit of a device is another");
    }
  }
  return true;
}

Enlisted const limits_target{{"limits", run_limits}};

}  // namespace
}  // namespace unimem::fuzz
