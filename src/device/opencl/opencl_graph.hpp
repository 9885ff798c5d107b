#pragma once

#include <unimem/device/program.hpp>

#include "device/opencl/opencl_program.hpp"

#include <memory>
#include <span>
#include <vector>

namespace unimem::detail::opencl {

/// Runs in a row, each with a kernel object of its own whose arguments are set once. One command of a queue enqueues
/// them all. Not a command buffer of the driver's (docs/decisions/command-buffers.md).
///
/// The launching command keeps it until the work has ended.
class OpenClGraph final : public CapturedRuns {
 public:
  /// Throws KernelError for programs that `device` has not made, or arguments that do not fit; DeviceError if the
  /// driver refuses.
  OpenClGraph(OpenClDevice const& device, std::span<const ProgramRun> runs);

  [[nodiscard]] cl_context context() const noexcept { return context_; }

  /// Enqueues all of it on behalf of `command`, whose events tell how far it came if it throws: DeviceError where the
  /// driver refuses a run, after those before it have ended. Thread-safe.
  void enqueue(Command& command, cl_command_queue queue) const;

 private:
  struct Run {
    std::shared_ptr<Program const> kept;
    OpenClProgram const& program;  ///< the one that is kept
    Range range;
    OpenClProgram::ReadyKernel ready;
  };

  cl_context context_;
  std::vector<Run> runs_;
};

}  // namespace unimem::detail::opencl
