#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace unimem {

/// A discrete device made of host memory: what it is to be like, and what shall go wrong.
struct SimOptions {
  std::size_t memory_bytes = std::size_t{1} << 30;  ///< capacity, enforced exactly (`memory=1GiB`)
  double upload_bytes_per_second = 0;               ///< host to device; 0: as fast as memory (`h2d=12GB/s`)
  double download_bytes_per_second = 0;             ///< device to host (`d2h=12GB/s`)
  double copy_bytes_per_second = 0;                 ///< within the device (`d2d=100GB/s`)
  double peer_bytes_per_second = 0;                 ///< from another simulated device (`peer_rate=50GB/s`)
  bool peer = true;                                 ///< can copy from other simulated devices at all (`peer=0`)
  bool heedless = false;  ///< starts work though what it needs has failed, as many drivers do (`heedless=1`)
  std::chrono::nanoseconds latency{0};  ///< added to every copy, fill and run (`latency=10us`)
  /// Copies of more than this from and to pageable memory go by way of pinned blocks (`staging=8MiB`); by default none.
  std::optional<std::size_t> staging_threshold{};
  bool batches = false;  ///< copies many pieces by one command, which pays its latency once (`batch=1`)
  // The fault plan: the n-th call, counting from 1, fails; 0: never. Calls count in the order in which they are made,
  // and only as far as they begin: work that is skipped, since what it needs has failed, has not been called for.
  std::uint64_t fail_allocation = 0;  ///< raises OutOfMemory (`fail_alloc=3`)
  std::uint64_t fail_upload = 0;      ///< the copy fails when its turn comes, before a byte is moved (`fail_upload=1`)
  std::uint64_t fail_download = 0;    ///< likewise (`fail_download=1`)
  std::uint64_t fail_run = 0;    ///< the kernel fails half-way, having scribbled over what it may write (`fail_run=2`)
  std::uint64_t fail_call = 0;   ///< the n-th allocation or command of any kind fails (`fail_call=7`)
  std::uint64_t lose_after = 0;  ///< from the n-th command on the device is gone: every command fails (`lose_after=9`)

  [[nodiscard]] friend bool operator==(SimOptions const&, SimOptions const&) = default;
};

/// Reads `memory=1GiB,h2d=12GB/s,latency=10us,fail_alloc=3`; empty text is all defaults. Throws InvalidArgument.
[[nodiscard]] UNIMEM_API SimOptions parse_sim_options(std::string_view text);

/// Makes a simulated device that lives as long as the process, a new one each time: `device("sim:…")` gives the same
/// one for the same options, and never one made here. Its memory reads 0xCD where nothing has been written since it was
/// allocated, and costs nothing until touched. Thread-safe.
UNIMEM_API Device& make_sim(SimOptions const& options = {});

/// Replaces the fault plan of a simulated device, counting calls from 1 again; throws InvalidArgument for any other
/// device.
UNIMEM_API void set_sim_faults(Device& sim, SimOptions const& options);

/// The most bytes that have ever been allocated at once on a simulated device, pages included; throws InvalidArgument
/// for any other device. Thread-safe.
[[nodiscard]] UNIMEM_API std::size_t sim_peak_bytes(Device& sim);

}  // namespace unimem
