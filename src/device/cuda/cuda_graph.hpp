#pragma once

#include <unimem/device/program.hpp>

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"

#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace unimem::detail::cuda {

/// Runs in a row as an executable graph of the driver's: one call launches them all, in order. Captured in a stream of
/// its own, so that it does not matter what else the user's streams carry at the moment, and default streams,
/// which cannot be captured, serve as well. The driver runs one launch of a graph after the other, in whatever streams.
///
/// The launching queue keeps it until the work has ended.
class CudaGraph final : public CapturedRuns {
 public:
  /// `gpu`'s context is the calling thread's. Throws KernelError for programs of another device, or arguments that do
  /// not fit; DeviceError if the driver refuses. Nothing of it is left in the driver then.
  CudaGraph(ContextRef const& gpu, Health& health, std::span<const ProgramRun> runs);
  CudaGraph(CudaGraph const&) = delete;
  CudaGraph& operator=(CudaGraph const&) = delete;
  ~CudaGraph() override;

  [[nodiscard]] Context context() const noexcept { return gpu_.context; }
  /// Puts all of it into a stream. The context is current. Thread-safe.
  [[nodiscard]] Result launch(Stream stream) const noexcept;

 private:
  ContextRef const& gpu_;
  Health& health_;
  std::vector<std::shared_ptr<Program const>> programs_;  ///< the graph runs code of their modules
  GraphExec executable_ = nullptr;
  mutable std::mutex launch_mutex_;  ///< the driver does not serialize what is done with one graph
};

}  // namespace unimem::detail::cuda
