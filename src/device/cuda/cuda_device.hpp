#pragma once

#include <unimem/core/detail/lazy.hpp>
#include <unimem/device/device.hpp>

#include "device/cuda/command_stream.hpp"
#include "device/cuda/cuda_exporter.hpp"
#include "device/cuda/cuda_pages.hpp"
#include "device/cuda/event_pool.hpp"
#include "device/cuda/hardware.hpp"
#include "device/cuda/health.hpp"
#include "device/cuda/host_flags.hpp"
#include "device/cuda/piece_mover.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace unimem::detail::cuda {

/// Where the driver takes single blocks of device memory from.
enum class Source : std::uint8_t {
  plain,           ///< cuMemAlloc: whole and at once
  stream_ordered,  ///< cuMemAllocAsync: the driver's own pool
};

/// What of a device is a choice.
struct CudaOptions {
  std::optional<std::size_t> memory_bytes{};       ///< capacity; else the GPU's
  std::optional<std::size_t> pinned_bytes{};       ///< capacity of pinned memory; else the system's
  std::optional<std::size_t> staging_threshold{};  ///< else `staging_by_default`
  Source source = Source::plain;
  bool maps_pages = true;       ///< for pools, where the GPU can; else all they have are blocks of the source
  bool profiles = false;        ///< copies are timed, by two events each
  bool exports_memory = false;  ///< other processes get buffers as memory of the GPU
  bool batches = true;          ///< many copies go to the driver as one batch, where it has those
  bool blocking = false;  ///< threads that wait for the GPU sleep: the processor is others', and the end comes later
  bool write_combined = false;  ///< pinned memory that the host only writes: faster over the bus, very slow to read
};

/// Above which size pageable copies go by way of pinned chunks where it is not configured, on a host of so many
/// threads: several fill them faster than the driver's own staging, which is one thread's work, so that with few there
/// is no gain.
[[nodiscard]] std::optional<std::size_t> staging_by_default(std::size_t threads) noexcept;

/// A GPU under the CUDA driver API, in its primary context: the one which the CUDA runtime and other libraries use, so
/// that pointers and streams pass between them and us. The context is made when it is first needed.
///
/// It serves device memory; `pinned`, which every GPU reaches at full speed; and `unified`, managed memory, where host
/// and GPU may use it at the same time. The calling thread's current context is left as it was by every call.
class CudaDevice final : public unimem::Device, private PageOwner {
 public:
  CudaDevice(std::string id, Hardware hardware, CudaOptions options);

  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override;
  void release(DeviceMemory memory, Location location) noexcept override;
  /// Reaches the driver for unified memory alone: other memory does not move by itself.
  void advise(DeviceMemory memory, Location location, unimem::Advice advice, unimem::Device const* place,
              bool holds) noexcept override;
  [[nodiscard]] PageSource* pages() noexcept override;
  [[nodiscard]] MemoryExporter* exporter() noexcept override;
  [[nodiscard]] bool hands_memory_over() const noexcept override { return options_.exports_memory; }
  [[nodiscard]] std::string hardware_id() const override { return hardware_.uuid; }
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return false; }
  [[nodiscard]] bool has_unified_memory() const noexcept override { return hardware_.has_managed; }
  [[nodiscard]] bool shares_unified_memory(unimem::Device const& owner) const noexcept override;
  [[nodiscard]] void* address(DeviceMemory memory) override;
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& source) override;
  [[nodiscard]] LinkCost link_cost() const noexcept override;
  [[nodiscard]] std::optional<std::size_t> staging_threshold() const noexcept override;
  [[nodiscard]] std::size_t staging_depth() const noexcept override { return 4; }
  [[nodiscard]] bool batches_copies() const noexcept override { return true; }
  [[nodiscard]] bool copies_from(unimem::Device const& other) const noexcept override;
  [[nodiscard]] bool is_lost() const noexcept override { return health_.lost(); }

  /// A queue over a stream of the user's, which stays the user's. Throws InvalidArgument unless it is of this GPU.
  [[nodiscard]] Queue adopt(Stream foreign);

  [[nodiscard]] Driver const& driver() const noexcept { return *hardware_.driver; }
  /// Its memory, as a place.
  [[nodiscard]] MemoryLocation location() const noexcept { return {LocationType::device, hardware_.device}; }
  /// Throws DeviceError if the driver refuses a context.
  [[nodiscard]] ContextRef const& gpu() const;
  [[nodiscard]] Health& health() const noexcept { return health_; }
  [[nodiscard]] EventPool& events() const;
  [[nodiscard]] HostFlags& flags() const;
  [[nodiscard]] PieceMover& mover() const;
  /// How far apart the rows of a rectangle may lie for cuMemcpy2DAsync.
  [[nodiscard]] std::size_t max_pitch() const noexcept { return hardware_.max_pitch; }
  /// Whether copies may go in batches of the driver's (cuMemcpyBatchAsync).
  [[nodiscard]] bool has_batches() const noexcept { return options_.batches && driver().cuMemcpyBatchAsync != nullptr; }
  /// Whether its kernels reach pinned memory of the host by the host's addresses.
  [[nodiscard]] bool reaches_pinned_memory() const noexcept { return hardware_.reaches_pinned; }

  /// Lets this GPU's copy engines reach another's memory directly, its pages included, where the two can. Told once for
  /// each.
  void reach(CudaDevice& other);

 protected:
  [[nodiscard]] std::unique_ptr<QueueBackend> make_queue() override;

 private:
  /// What is made with the context.
  struct Runtime {
    Runtime(Driver const& driver, Context context, int architecture, std::string const& id, Health& health,
            EventUse use)
        : gpu{driver, context, architecture, id}, events(gpu, health, use), flags(gpu, health), mover(gpu, health) {}

    ContextRef gpu;
    EventPool events;
    HostFlags flags;
    PieceMover mover;
  };

  [[nodiscard]] Runtime& runtime() const;
  [[nodiscard]] Runtime& make_runtime() const;
  /// What there is one of for a GPU that maps pages; null for others.
  template <class Made>
  [[nodiscard]] Made* over_pages(Lazy<Made>& made) noexcept;
  [[nodiscard]] MemoryBudget& budget(Location location) noexcept;
  [[noreturn]] void refuse(std::size_t bytes, Location location, std::string reason);
  /// What the driver said to the call it was asked by.
  struct Answer {
    Result code;
    char const* call;
    DevicePointer memory;
  };
  [[nodiscard]] DevicePointer take(std::size_t bytes, Location location);
  [[nodiscard]] Answer ask_for(std::size_t bytes, Location location);
  /// Where blocks are taken from the driver's pool, and given back: no work of anybody's is waited for there. The
  /// pool's lock is held and the context current. Throws DeviceError.
  [[nodiscard]] Stream pool_stream() const;

  void take_for_pages(std::size_t bytes) override;
  void give_back_from_pages(std::size_t bytes) noexcept override { hardware_.budget->give_back(bytes); }
  void pages_created(std::uintptr_t, std::size_t) override {}
  void pages_moved(std::uintptr_t, std::uintptr_t, std::size_t) override {}
  void pages_freed(std::uintptr_t, std::size_t) noexcept override {}

  Hardware hardware_;
  CudaOptions options_;
  MemoryBudget pinned_budget_;
  mutable Health health_;
  mutable std::mutex runtime_mutex_;
  mutable std::atomic<Runtime*> runtime_{nullptr};  ///< for good, as the device is
  Lazy<CudaPages> pages_;
  Lazy<CudaExporter> exporter_;
  mutable std::once_flag link_measured_;
  mutable LinkCost link_;
  mutable std::mutex pool_mutex_;  ///< of the driver's pool
  mutable Stream pool_stream_ = nullptr;
  std::mutex reached_mutex_;
  std::vector<CudaDevice const*> reached_;
};

}  // namespace unimem::detail::cuda
