#pragma once

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"
#include "device/host_pinning.hpp"

namespace unimem::detail::cuda {

/// Registers pinned host memory with the driver, for every GPU of the process, through the context of one of them.
class CudaPinning final : public PinningDriver {
 public:
  CudaPinning(ContextRef const& gpu, Health& health) noexcept : gpu_(gpu), health_(health) {}

  [[nodiscard]] Outcome pin(void* address, std::size_t bytes) noexcept override;
  void unpin(void* address) noexcept override;

 private:
  ContextRef const& gpu_;
  Health& health_;
};

}  // namespace unimem::detail::cuda
