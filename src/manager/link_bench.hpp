#pragma once

#include <unimem/device/memory.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace unimem {
class Device;
}

namespace unimem::detail {

struct LinkFigures {
  double bytes_per_second = 0;
  double latency_seconds = 0;
  bool within_cache = false;     ///< the processor's last cache holds what was copied
  bool short_of_memory = false;  ///< less was copied than should have been, for want of more
};

/// What measuring may come to, and so what is believed of a file: no link moves a hundred terabytes a second, or less
/// than a byte.
struct PlausibleLink {
  static constexpr double least_bytes_per_second = 1, most_bytes_per_second = 1e14;
  static constexpr double shortest_latency_seconds = 1e-9, longest_latency_seconds = 60;
};

/// Whether figures are within these limits; what is no number is not.
[[nodiscard]] constexpr bool is_plausible(LinkFigures const& figures) noexcept {
  using Limits = PlausibleLink;
  return figures.bytes_per_second >= Limits::least_bytes_per_second &&
         figures.bytes_per_second <= Limits::most_bytes_per_second &&
         figures.latency_seconds >= Limits::shortest_latency_seconds &&
         figures.latency_seconds <= Limits::longest_latency_seconds;
}

/// Whose blocks are copied to measure a link.
using PoolOf = std::function<MemoryPool&(Device&, Location)>;

/// Times copies of two sizes from one memory to another, of which one may be the host's (null): a few of each after a
/// first one, which pays for what happens once, and takes the median. On a queue of its own between blocks of these
/// pools, within their limits.
///
/// The larger ones are of what the processor's last cache does not hold (`copied_to_measure`), or a twentieth of a
/// second would be copied, if that is less, but of 4 MiB at least; less where there is not so much memory.
///
/// Throws what the pools and the devices throw, OutOfMemory where there are not 64 KiB; DataLost excepted: there is no
/// data. Waits for no work but its own.
[[nodiscard]] LinkFigures measure_link(Device* from, Device* to, PoolOf const& pool_of);

/// Bytes of a copy that comes from memory and goes there, whatever was copied before: half as many again as the last
/// cache has, up to the next power of two; 256 MiB at most, so that measuring stays modest.
[[nodiscard]] std::size_t copied_to_measure();

/// Pools for one measurement, where there are none: what they took goes back with them.
class PassingPools {
 public:
  [[nodiscard]] MemoryPool& of(Device& device, Location location);

 private:
  std::vector<std::unique_ptr<MemoryPool>> pools_;
};

}  // namespace unimem::detail
