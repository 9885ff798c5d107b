#pragma once

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"
#include "device/host_pinning.hpp"

#include <mutex>
#include <optional>
#include <vector>

namespace unimem::detail::cuda {

/// Registers pinned host memory with the driver, for every GPU of the process, through the context of one that is not
/// lost: what a lost one registered would stay so, and look pinned to the others when its addresses are used again.
class CudaPinning final : public PinningDriver {
 public:
  /// A GPU whose context there is now. Again for the same does nothing. Thread-safe.
  void add(ContextRef const& gpu, Health& health);

  [[nodiscard]] Outcome pin(void* address, std::size_t bytes) noexcept override;
  void unpin(void* address) noexcept override;

 private:
  struct Gpu {
    ContextRef const* context;
    Health* health;
  };
  [[nodiscard]] std::optional<Gpu> one_that_lives() const noexcept;

  mutable std::mutex mutex_;
  std::vector<Gpu> gpus_;
};

}  // namespace unimem::detail::cuda
