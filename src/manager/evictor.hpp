#pragma once

#include "manager/residents.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace unimem::detail {

/// Has residents give memory back, and counts what came of it: of devices, and of the host.
///
/// Thread-safe.
class Evictor {
 public:
  explicit Evictor(Residents& residents) noexcept : residents_(residents) {}

  /// Counts alone: nothing else is published through them.
  struct Counts {
    // Relaxed: counts alone.
    std::atomic<std::uint64_t> evictions{0};
    std::atomic<std::uint64_t> failures{0};
    std::atomic<std::size_t> bytes{0};
  };

  /// Has one give its memory back: the bytes, 0 if it is busy or gone. If it fails there are no bytes, nothing is lost,
  /// and the next one may do: `failure` is why.
  [[nodiscard]] std::optional<std::size_t> evict(Residents::Candidate const& candidate, std::string& failure);

  [[nodiscard]] Counts const& of_devices() const noexcept { return of_devices_; }
  [[nodiscard]] Counts const& of_the_host() const noexcept { return of_the_host_; }

 private:
  Residents& residents_;
  Counts of_devices_, of_the_host_;
};

}  // namespace unimem::detail
