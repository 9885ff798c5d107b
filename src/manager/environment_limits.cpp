#include "manager/environment_limits.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/device.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>

namespace unimem::detail {
namespace {

constexpr char const* variable = "UNIMEM_LIMITS";
constexpr std::array locations{Location::host, Location::pinned, Location::device, Location::unified};
constexpr std::array backends{Backend::cpu, Backend::sim, Backend::opencl, Backend::cuda, Backend::metal};

[[noreturn]] void refuse(std::string_view entry) {
  throw InvalidArgument(variable, std::string(entry),
                        "DEVICE=SIZE or DEVICE/LOCATION=SIZE, with ';' between them: devices are cpu, sim:N, opencl:N, "
                        "cuda:N or metal:N, locations host, pinned, device or unified, sizes such as 512MiB");
}

/// A typo would limit nothing. Whether there is such a device shows only when it is asked for.
bool is_device(std::string_view id) {
  auto const number = std::min(id.find(':'), id.size());
  auto const digits = id.substr(std::min(number + 1, id.size()));
  bool const numbered = !digits.empty() && std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  return std::ranges::any_of(backends, [&](Backend backend) {
    return id.substr(0, number) == to_string(backend) && numbered == (backend != Backend::cpu) &&
           (numbered || number == id.size());
  });
}

}  // namespace

EnvironmentLimits::EnvironmentLimits(std::string_view text) {
  while (!text.empty()) {
    auto const end = std::min(text.find(';'), text.size());
    auto const entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    auto const equals = entry.find('=');
    if (equals == std::string_view::npos) refuse(entry);
    auto const place = entry.substr(0, equals);
    auto const slash = std::min(place.find('/'), place.size());
    auto const id = place.substr(0, slash);
    if (!is_device(id)) refuse(entry);
    std::optional<Location> location;
    if (id != to_string(Backend::cpu)) location = Location::device;
    if (slash != place.size()) {
      auto const named =
          std::ranges::find(locations, place.substr(slash + 1), [](Location one) { return to_string(one); });
      if (named == locations.end()) refuse(entry);
      location = *named;
    }
    // As for a request for such memory, whatever device it names.
    bool const of_the_host = location == Location::host || location == Location::pinned;
    all_.push_back({std::string(of_the_host ? to_string(Backend::cpu) : id), location,
                    parse_size(entry.substr(equals + 1), variable)});
  }
}

EnvironmentLimits EnvironmentLimits::read() {
  auto const text = environment(variable);
  return text ? EnvironmentLimits{*text} : EnvironmentLimits{};
}

std::size_t EnvironmentLimits::of(Device const& device, Location location) const noexcept {
  // Whatever options it was asked for with, it is the same device's memory.
  return least(std::string_view(device.id()).substr(0, device.id().find(',')), location);
}

std::size_t EnvironmentLimits::of_the_host() const noexcept {
  return least(to_string(Backend::cpu), std::nullopt);
}

std::size_t EnvironmentLimits::least(std::string_view device, std::optional<Location> location) const noexcept {
  auto least = std::numeric_limits<std::size_t>::max();
  for (auto const& limit : all_) {
    if (limit.location == location && limit.device == device) least = std::min(least, limit.bytes);
  }
  return least;
}

}  // namespace unimem::detail
