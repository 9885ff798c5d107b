#pragma once

#include <unimem/core/detail/lazy.hpp>
#include <unimem/core/export.hpp>
#include <unimem/device/advice.hpp>
#include <unimem/device/detail/memory_exporter.hpp>
#include <unimem/device/detail/pages.hpp>
#include <unimem/device/detail/transfer_meter.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/device/program.hpp>
#include <unimem/device/queue.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// What speaks to the hardware.
enum class Backend : std::uint8_t { cpu, opencl, cuda, metal, sim };

[[nodiscard]] UNIMEM_API std::string_view to_string(Backend backend) noexcept;

/// What does not change while a device exists.
struct DeviceInfo {
  std::string name;  ///< the hardware's own name
  std::string vendor;
  std::string driver;              ///< driver or runtime version, as it spells itself
  std::size_t total_bytes = 0;     ///< capacity the library enforces
  std::size_t max_allocation = 0;  ///< the largest single allocation, bytes
  std::size_t alignment = 1;       ///< every allocation's address (or object) is aligned to this, bytes
  unsigned compute_units = 1;      ///< cores, or what the driver counts as such
  bool is_gpu = false;
  bool integrated = false;             ///< shares the host's memory physically
  bool doubles = true;                 ///< kernels may use 64-bit floating point
  bool atomics64 = true;               ///< kernels may use the atomic functions of 64 bits
  std::size_t max_group_items = 0;     ///< the most items in a group; a kernel may have a lower limit. 0: no limit
  std::size_t group_memory_bytes = 0;  ///< memory that a group's items may share. 0: no limit
  bool compiles_source = false;        ///< runs the source form of kernels
  bool runs_host_form = false;         ///< runs the host form of kernels
  std::string limited_by;              ///< what makes `total_bytes` less than the hardware has; empty: nothing does
};

/// Memory of a device at one moment, bytes. Free memory is the limit less what is live.
struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

/// Bytes and commands the backend itself has carried out, counted where they happen: what a buffer's own statistics are
/// checked against. And the time that took: for each copy, by the steady clock, from when its bytes began to move until
/// all had arrived, the time it waited in its queue left out. Of copies at once on several queues each counts its own,
/// so that bytes by time is what a copy by itself was given.
///
/// Under OpenCL the driver keeps the time, by the device's own clock, and only where it was asked to, since some
/// drivers are slower then: `opencl:0,profile=1`. Else its copies count as untimed, and not as if they had lasted until
/// their end was noticed. A copy that failed counts nowhere.
///
/// They count for as long as the process lives, for all users: take the difference of two looks.
struct TransferCounters {
  std::uint64_t host_to_device_bytes = 0;
  std::uint64_t host_to_device_copies = 0;
  std::uint64_t device_to_host_bytes = 0;
  std::uint64_t device_to_host_copies = 0;
  std::uint64_t device_to_device_bytes = 0;
  std::uint64_t device_to_device_copies = 0;
  std::uint64_t host_to_device_nanoseconds = 0;
  std::uint64_t device_to_host_nanoseconds = 0;
  std::uint64_t device_to_device_nanoseconds = 0;
  std::uint64_t untimed_copies = 0;  ///< of all the copies above, those whose time is in none of the sums

  /// What has moved since an earlier look, and how long that took.
  [[nodiscard]] UNIMEM_API TransferCounters since(TransferCounters const& earlier) const noexcept;
  friend bool operator==(TransferCounters const&, TransferCounters const&) = default;
};

/// Which way a copy goes that a device's queue carries out.
enum class CopyDirection : std::uint8_t { from_host, to_host, from_device };

/// A first estimate of one direction between host and device. Used to decide what is worth merging into one copy.
struct LinkCost {
  double latency_seconds = 10e-6;
  double bytes_per_second = 8e9;
  /// What each row of a rectangle costs besides its bytes, where one command copies them all (`Queue::upload` of
  /// pieces); nothing where each row is a command.
  std::optional<double> row_seconds = std::nullopt;
};

/// One device, and the only way to its memory and queues. Devices live as long as the process and are never moved.
/// Thread-safe.
class UNIMEM_API Device {
 public:
  Device(Device const&) = delete;
  Device& operator=(Device const&) = delete;
  virtual ~Device();

  /// "cpu", "opencl:0", "sim:0", …
  [[nodiscard]] std::string_view id() const noexcept { return id_; }
  [[nodiscard]] Backend backend() const noexcept { return backend_; }
  [[nodiscard]] DeviceInfo const& info() const noexcept { return info_; }

  [[nodiscard]] virtual MemoryInfo memory_info() const = 0;

  /// How many bytes more may be allocated before something other than the device itself is in the way: the limit of the
  /// container around the process, for the host's memory. The largest number where there is nothing of the kind.
  [[nodiscard]] virtual std::size_t headroom() const;

  /// Memory of `bytes` (at least 1) bytes at a location this device serves, aligned to `info().alignment`; its contents
  /// are undefined. Throws OutOfMemory when the capacity is reached, UnsupportedOperation for a location it does not
  /// serve.
  [[nodiscard]] virtual DeviceMemory allocate(std::size_t bytes, Location location) = 0;

  /// Gives back what `allocate` returned, at the same location. All work on it must have ended.
  virtual void release(DeviceMemory memory, Location location) noexcept = 0;

  /// As `allocate` and `release`, for what no other owner is to see: where it is memory of this process's, it shares no
  /// page with anything else, and is left out of core dumps (MADV_DONTDUMP).
  [[nodiscard]] virtual DeviceMemory allocate_undumped(std::size_t bytes, Location location);
  virtual void release_undumped(DeviceMemory memory, Location location) noexcept;

  /// A hint on the use of `memory`, a part of what this device has allocated at `location`: that it holds from now on,
  /// or (`holds` is false) no longer. `place` is the device it speaks of, the cpu device standing for the host; null
  /// for advice that speaks of none. Moves nothing by itself and cannot fail: a device that has no use for it, or is
  /// asked for what its driver refuses, does nothing, as this one here. Called while the memory stands, also with work
  /// pending on it.
  virtual void advise(DeviceMemory memory, Location location, Advice advice, Device const* place, bool holds) noexcept;

  /// The page interface, or null where the driver has none.
  [[nodiscard]] virtual PageSource* pages() noexcept { return nullptr; }

  /// What makes and opens memory that other processes can have, or null where the driver has no such thing.
  [[nodiscard]] virtual MemoryExporter* exporter() noexcept { return nullptr; }
  /// Whether it was asked to hand its memory to other processes: they must have the same hardware.
  [[nodiscard]] virtual bool hands_memory_over() const noexcept { return false; }
  /// What names the hardware in every process of the machine; empty where the driver does not tell.
  [[nodiscard]] virtual std::string hardware_id() const { return {}; }

  /// Whether device memory is host memory, so that a buffer needs only one copy: any, if it `reaches_host_memory`, or
  /// what the device allocates itself (`Location::unified`).
  [[nodiscard]] virtual bool shares_storage_with_host() const noexcept = 0;

  /// Whether its commands and kernels take any memory of the host by its address, as the cpu's do: a buffer on such a
  /// device is where the host has it.
  [[nodiscard]] virtual bool reaches_host_memory() const noexcept { return false; }

  /// Whether it serves `Location::unified`: memory that the host reaches through `address`, with nothing to be copied,
  /// while commands and kernels take it like all other memory of the device.
  [[nodiscard]] virtual bool has_unified_memory() const noexcept { return shares_storage_with_host(); }

  /// Whether what `owner` allocates as `Location::unified` is this device's memory as well, at the same addresses.
  [[nodiscard]] virtual bool shares_unified_memory(Device const& owner) const noexcept { return &owner == this; }

  /// The address code running on this device may use for `memory`; null where device memory has no address (OpenCL).
  [[nodiscard]] virtual void* address(DeviceMemory memory) = 0;

  /// Makes a kernel ready. Throws KernelError when it lacks the form this device needs, or does not build (with the
  /// log).
  [[nodiscard]] virtual std::shared_ptr<Program const> compile(ProgramSource const& source) = 0;

  /// What a copy between host and device costs: set on simulated devices, so that what they merge is exact; measured
  /// once where there is hardware.
  [[nodiscard]] virtual LinkCost link_cost() const noexcept { return {}; }

  /// What a copy costs where that is set and need not be measured: on a simulated device, which is as fast as memory
  /// where its bandwidth is infinite. Nothing where there is hardware.
  [[nodiscard]] virtual std::optional<LinkCost> configured_link(CopyDirection direction) const noexcept;

  /// Copies of more bytes than this between the device and pageable host memory are faster by way of pinned blocks,
  /// although each byte is then copied once more; nothing where they never are.
  [[nodiscard]] virtual std::optional<std::size_t> staging_threshold() const noexcept { return std::nullopt; }

  /// How many pinned blocks such a copy passes through by turns: as many as it takes for the filling of one, and for
  /// the threads that hand over, to hide behind the copies of the others. From 2 to 4.
  [[nodiscard]] virtual std::size_t staging_depth() const noexcept { return 2; }

  /// Whether its queues copy many pieces between it and pinned memory of the host (`Queue::upload` of pieces) for much
  /// less than that many copies: it is then worth bringing scattered bytes together in pinned memory first.
  [[nodiscard]] virtual bool batches_copies() const noexcept { return false; }

  /// Whether this device's queues can copy from `other`'s memory without the host. Need not be mutual.
  [[nodiscard]] virtual bool copies_from(Device const& other) const noexcept { return &other == this; }

  /// Whether the device is known to be gone for good, and with it all that its memory held. False where the driver does
  /// not tell.
  [[nodiscard]] virtual bool is_lost() const noexcept { return false; }

  /// The queue used when none is named. Made on first use.
  [[nodiscard]] Queue& default_queue();
  [[nodiscard]] Queue create_queue();

  /// A queue of the library's own, for what only waits: waiting there delays no other work.
  [[nodiscard]] Queue& waiting_queue();

  /// Waits for all work submitted so far to every queue of this device. Errors stay with their tickets. Throws
  /// UnsupportedOperation in a kernel that would wait for itself.
  void synchronize();

  /// The unfinished work of this device: the last event of every queue that is not done.
  [[nodiscard]] std::vector<Event> unfinished() const;

  [[nodiscard]] TransferCounters transfers() const noexcept;

  /// For backends: called where the bytes have moved, with the time that took if it is known, the copy's meter, and how
  /// many copies the bytes stand for.
  using CopyTime = std::optional<std::chrono::nanoseconds>;
  void count_upload(std::size_t bytes, CopyTime took, TransferMeter* meter = nullptr, std::size_t copies = 1) noexcept;
  void count_download(std::size_t bytes, CopyTime took, TransferMeter* meter = nullptr,
                      std::size_t copies = 1) noexcept;
  void count_copy(std::size_t bytes, CopyTime took, TransferMeter* meter = nullptr, std::size_t copies = 1) noexcept;

 protected:
  Device(Backend backend, std::string id);

  [[nodiscard]] virtual std::unique_ptr<detail::QueueBackend> make_queue() = 0;

  /// A queue of this device over what the backend has made.
  [[nodiscard]] Queue enlist(std::unique_ptr<detail::QueueBackend> backend);

  DeviceInfo info_;  ///< filled by the backend's constructor

 private:
  struct Counters {
    std::atomic<std::uint64_t> bytes{0}, copies{0}, nanoseconds{0};
  };

  void count(Counters& direction, std::size_t bytes, CopyTime took, TransferMeter* meter, std::size_t copies) noexcept;

  Backend backend_;
  std::string id_;
  Counters uploads_, downloads_, copies_;
  std::atomic<std::uint64_t> untimed_copies_{0};
  mutable std::mutex queues_mutex_;
  std::vector<detail::QueueControl*> queues_;  ///< every queue ever made here: the blocks are immortal
  detail::Lazy<Queue> default_queue_;
  detail::Lazy<Queue> waiting_queue_;
};

}  // namespace unimem
