#pragma once

#include <unimem/device/program.hpp>

#include "device/cuda/context.hpp"
#include "device/cuda/kernel_compiler.hpp"
#include "device/cuda/launch_shape.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail::cuda {

/// A kernel loaded into one GPU's context. Nothing of it changes once it is made, so any number of threads may launch
/// it at a time. The launching queue keeps it until the work has ended: what runs is in its module.
class CudaProgram final : public Program {
 public:
  /// Compiles, or finds what was compiled before, and loads it. Throws what KernelCompiler::compile throws, and
  /// KernelError or DeviceError if the driver refuses what was made.
  CudaProgram(ContextRef context, KernelCompiler const& compiler, ProgramSource const& source);
  CudaProgram(CudaProgram const&) = delete;
  CudaProgram& operator=(CudaProgram const&) = delete;
  ~CudaProgram() override;

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] Context context() const noexcept { return context_.context; }
  [[nodiscard]] std::vector<ProgramParameter> const* parameters() const noexcept override { return &parameters_; }
  [[nodiscard]] std::string_view compiler() const noexcept override { return kernel_.compiler; }
  void check_range(Range range) const override;

  /// Enqueues one run over `range`; the context is the calling thread's. A range without items is no work. Throws
  /// KernelError if the arguments do not fit the kernel's parameters or the range is larger than a grid of its blocks
  /// can be, and nothing was enqueued; DeviceError if the driver refuses.
  void launch(Stream stream, Range range, std::span<const KernelArgument> arguments) const;
  /// Throws the KernelError that `launch` would.
  void check_fit(Range range, std::span<const KernelArgument> arguments) const;

 private:
  void load();
  void check_count(std::size_t arguments) const;
  [[nodiscard]] LaunchShape shape_for(Range range) const;
  /// The argument as the kernel's parameter `index` takes it, where that is not the argument's own bytes: an address,
  /// or a number of another width.
  [[nodiscard]] std::optional<std::uint64_t> passed(std::size_t index, KernelArgument const& argument) const;

  ContextRef context_;
  std::string name_;
  CompiledKernel kernel_;
  std::vector<ProgramParameter> parameters_;
  std::string asks_group_by_;  ///< the portable name by which it does; empty: it does not
  Occupancy occupancy_;
  std::size_t most_threads_ = 0;  ///< in a block of this kernel
  Module module_ = nullptr;
  Function function_ = nullptr;
};

}  // namespace unimem::detail::cuda
