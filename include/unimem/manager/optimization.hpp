#pragma once

#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/manager/placement.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

class Device;

/// What `MemoryManager::optimize` does to a buffer.
enum class Optimization : std::uint8_t {
  pin,      ///< locks the host memory of what is copied again and again, where it stands
  release,  ///< gives back a device's copy that is not about to be used, and that the host has as well
  place,    ///< brings to a device what is about to be used there, and was evicted
};

[[nodiscard]] UNIMEM_API std::string_view to_string(Optimization what) noexcept;

/// How far `MemoryManager::optimize` may go.
struct OptimizationLimits {
  /// Locked pages are not there for other processes. Of one call, deferred ones included.
  std::size_t max_pinned_bytes = std::size_t{256} << 20;
  /// For each device, and never more than is free there.
  std::size_t max_placed_bytes = std::size_t{256} << 20;
};

/// What was done to one buffer.
struct OptimizationStep {
  Optimization what = Optimization::pin;
  std::uint64_t buffer = 0;  ///< its number in this process
  Name name{};
  Device const* device = nullptr;  ///< which copies go to, or whose memory it was
  std::size_t bytes = 0;           ///< 0: nothing was done
  /// Pinning: what the copies there have been would have taken less, by the links as they are known. Placing: what the
  /// next use does not wait for. Releasing saves bytes.
  double seconds_saved = 0;
  /// Its host memory shares pages with others and must stay where it is: it is locked when it is next taken.
  bool deferred = false;
};

/// What `MemoryManager::optimize` has done.
struct OptimizationReport {
  std::vector<OptimizationStep> steps;
  std::size_t pinned_bytes = 0;    ///< deferred ones left out
  std::size_t released_bytes = 0;  ///< of devices' memory
  std::size_t placed_bytes = 0;
  std::size_t trimmed_bytes = 0;  ///< of cached blocks
  double seconds_saved = 0;       ///< the sum over the steps

  /// A line for each step, and one that sums up.
  [[nodiscard]] UNIMEM_API std::string text() const;
};

/// By what residents decide.
struct OptimizationTerms {
  PlacementMachine machine{};  ///< with the device's links
  std::size_t most_bytes = 0;  ///< of this resident
  double idle_wait = 0;        ///< what waits longer than this, in bytes that others use on the device, is idle
};

}  // namespace unimem
