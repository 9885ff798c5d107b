#include "buffer/places.hpp"

#include <unimem/device/discovery.hpp>

#include "buffer/host_device.hpp"

#include <limits>

namespace unimem::detail {

Device& host_device() {
  static auto& instance = device("cpu");
  return instance;
}

void DevicePlace::used(std::size_t bytes) noexcept {
  history.used(*clock, bytes);
  next_use = NextUse::unsaid;
}

bool DevicePlace::is_used_soon(double within) const noexcept {
  if (next_use != NextUse::unsaid) return next_use == NextUse::soon;
  return history.expected_wait(*clock) < within;
}

bool DevicePlace::is_idle(double beyond) const noexcept {
  if (next_use != NextUse::unsaid) return next_use == NextUse::none;
  return history.expected_wait(*clock) > beyond;
}

void Places::choose_host_memory() noexcept {
  bool const wanted = wanted_ == Location::unified || default_->shares_storage_with_host();
  if (wanted && !default_->reaches_host_memory() && !find(*default_)) unified_ = default_;
}

Device& Places::default_device(bool host_has_memory) {
  if (default_ == nullptr) {
    default_ = &unimem::default_device();
    if (!host_has_memory) choose_host_memory();
  }
  return *default_;
}

bool Places::on_one_device(Place one, Place other) const noexcept {
  if (one == host_place || other == host_place) return false;
  auto const& device = *(*this)[one].device;
  return &device == (*this)[other].device && !shares(device);
}

std::optional<Place> Places::find(DevicePlace::File which) const noexcept {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].file == which) return static_cast<Place>(i + 1);
  }
  return std::nullopt;
}

std::string Places::name(Place place) const {
  return place == host_place || is_file(place) ? "host" : std::string((*this)[place].device->id());
}

CopyCost Places::cost() const {
  return [this](Place from, Place to, std::size_t count) {
    double seconds = 0;
    if (on_one_device(from, to) && !(*this)[from].device->is_lost()) return seconds;
    for (auto const place : {from, to}) {
      if (place == host_place) continue;
      auto const& device = *(*this)[place].device;
      if (device.is_lost()) return std::numeric_limits<double>::infinity();
      auto const link = device.link_cost();
      // Two writes to the user's file never cost more than one across the bytes between them: others may have written
      // those, and the buffer has not.
      bool const to_users = place == to && (*this)[place].file == DevicePlace::File::users;
      seconds += (to_users ? 0 : link.latency_seconds) + (static_cast<double>(count) / link.bytes_per_second);
    }
    return seconds;
  };
}

}  // namespace unimem::detail
