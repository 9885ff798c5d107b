#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

class MemoryPool;

/// Where the figures of a link come from.
enum class LinkSource : std::uint8_t {
  configured,  ///< the device was told what its links are: exact
  measured,    ///< copies were timed, now or by an earlier process on the same hardware
  estimated,   ///< it could not be measured (the log says why): the initial value
};

[[nodiscard]] UNIMEM_API std::string_view to_string(LinkSource source) noexcept;

/// One direction of a way that bytes take between two memories.
struct Link {
  std::string from;             ///< "host", or a device's id
  std::string to;               ///< likewise
  double bytes_per_second = 0;  ///< of a copy so large that its start does not matter; infinite: as fast as memory
  double latency_seconds = 0;   ///< of a copy so small that its bytes do not matter
  bool via_host = false;        ///< the devices do not reach each other: two copies by turns, by way of the host
  LinkSource source = LinkSource::measured;
  /// Measured with so little memory that the processor's last cache holds it: copies of more may be slower. For want of
  /// more it is not kept for later processes; it is where a cache of over 256 MiB holds all that may be copied.
  bool within_cache = false;

  /// What a copy of so many bytes takes by itself.
  [[nodiscard]] double seconds(std::size_t bytes) const noexcept {
    return latency_seconds + static_cast<double>(bytes) / bytes_per_second;
  }
  friend bool operator==(Link const&, Link const&) = default;
};

/// How links are found out.
struct LinkOptions {
  /// Where what was measured is kept for later processes, one file a link. Nothing: links-v1 in the user's cache
  /// (`UNIMEM_CACHE_DIR`, else unimem in `XDG_CACHE_HOME`, else .cache/unimem in `HOME`); empty: nowhere.
  std::optional<std::string> cache_directory{};
  bool measure_configured = false;  ///< measures also what a device says of its own links; for tests of measuring
  /// Whose memory is copied to measure: the pool of a device and location. Empty: of pools that are made for it, and of
  /// a manager's links the manager's, so that its limits hold.
  std::function<MemoryPool&(Device&, Location)> pools{};
};

/// Bandwidth and latency of every way between the host and devices, and between devices, each found out when it is
/// first asks. Simulated devices say what theirs are. All others are measured once by a few copies, of which some are
/// small and some large, on a queue of their own between blocks of pools, pinned on the host's side where the system
/// allows that: tenths of a second a link, and counted by the device like all copies. The large ones are of more than
/// the processor's last cache holds, and of no more than 256 MiB or what a twentieth of a second copies; the blocks are
/// smaller where the pools' limits leave less (`Link::within_cache`), and where that is less than 64 KiB the link is
/// estimated. What was measured is kept on disk, and counts as long as the hardware, its driver and the system are the
/// same.
///
/// What is kept and cannot be read is measured anew, and a directory that cannot be written keeps nothing: both are
/// told to the log.
///
/// Thread-safe. A caller that asks for a link that is being measured waits for it; other links are answered meanwhile.
/// UnsupportedOperation in a forked child whose parent made it.
class UNIMEM_API Links {
 public:
  explicit Links(LinkOptions options = {});
  Links(Links const&) = delete;
  Links& operator=(Links const&) = delete;
  ~Links();

  /// From the host to a device; nothing if its memory is the host's, so that nothing is ever copied.
  [[nodiscard]] std::optional<Link> to(Device& device);

  /// From a device to the host; likewise.
  [[nodiscard]] std::optional<Link> from(Device& device);

  /// From one device's memory to another's: the direct way if there is one, else by way of the host, which starts as
  /// late as both halves together and is as fast as the slower. Nothing within one device; where the memory of one is
  /// the host's, the link between the other and the host; nothing if both are.
  [[nodiscard]] std::optional<Link> between(Device& from, Device& to);

  /// Every link among the host and these devices, both directions: first those of the host, in the order of the
  /// devices, then those of each pair.
  [[nodiscard]] std::vector<Link> among(std::vector<std::reference_wrapper<Device>> const& devices);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace unimem
