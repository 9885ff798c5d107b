#pragma once

#include <unimem/device/memory.hpp>
#include <unimem/device/program.hpp>

#include "device/opencl/command.hpp"
#include "device/opencl/handle.hpp"
#include "device/opencl/parameters.hpp"
#include "device/opencl/pocl_run_order.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail::opencl {

class OpenClDevice;

/// A kernel built for one device, of a source in one of two forms, which the names of its parameters tell apart:
///
/// - the portable form of docs/kernels.md: two parameters for a buffer (object and offset), one for a scalar;
/// - plain OpenCL C: one parameter for every argument. A window into an object then needs a sub-buffer of its own.
///
/// Integers are converted to the parameter's width where the compiler tells what that is.
class OpenClProgram final : public Program {
 public:
  /// Compiles, unless another kernel of the same source has done so. Throws KernelError with the log, or naming the
  /// kernels there are when the entry is missing.
  OpenClProgram(OpenClDevice& device, ProgramSource const& source);
  ~OpenClProgram() override;

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] cl_context context() const noexcept { return context_; }
  [[nodiscard]] std::vector<ProgramParameter> const* parameters() const noexcept override { return &parameters_.takes; }
  [[nodiscard]] std::string_view compiler() const noexcept override { return compiler_; }
  void check_range(Range range) const override;

  /// Enqueues one run on behalf of `command`, which gets its events and the sub-buffers made for it. Throws KernelError
  /// if the arguments do not fit the kernel's parameters or a window starts where the device allows no sub-buffer,
  /// DeviceError if the driver refuses.
  void enqueue(Command& command, cl_command_queue queue, Range range, std::span<const KernelArgument> arguments) const;

  /// A kernel object whose arguments are set for good, and the sub-buffers among them.
  struct ReadyKernel {
    KernelHandle kernel;
    std::vector<MemoryHandle> windows;
  };
  /// What one run needs, for many of the same. Throws as `enqueue` does for the arguments and the range.
  [[nodiscard]] ReadyKernel ready(Range range, std::span<const KernelArgument> arguments) const;
  /// Enqueues such a run, over the range that it was made ready for. The command keeps neither it nor this.
  /// Thread-safe.
  void enqueue(Command& command, cl_command_queue queue, Range range, ReadyKernel const& ready) const;

 private:
  void read_groups(cl_device_id device);
  /// Groups that divide the range, as large as `group_` and the device allow: x first, then y, then z.
  [[nodiscard]] std::array<std::size_t, 3> group_of(Range range) const noexcept;
  /// The driver calls of a run of a kernel whose arguments are set. The caller holds `mutex_`.
  void enqueue(Command& command, cl_command_queue queue, Range range, cl_kernel kernel) const;
  /// One of them, in the order that the driver needs.
  void add(Command& command, cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, std::size_t const* from,
           std::size_t const* items, std::size_t const* group) const;
  /// A portable kernel runs in groups of the library's making, so it must not ask for its group.
  void refuse_groups(std::string_view source) const;
  void check_count(std::span<const KernelArgument> arguments) const;
  [[nodiscard]] std::vector<MemoryHandle> windows(std::span<const KernelArgument> arguments) const;
  [[nodiscard]] MemoryHandle window(std::size_t index, DeviceMemory memory) const;
  void check_kind(std::size_t argument, KernelArgument::Kind kind) const;
  void set(cl_kernel kernel, cl_uint index, std::size_t argument, std::size_t bytes, void const* value) const;
  void set_scalar(cl_kernel kernel, cl_uint index, std::size_t argument, KernelArgument const& scalar) const;
  void set_arguments(cl_kernel kernel, std::span<const KernelArgument> arguments,
                     std::span<const MemoryHandle> windows) const;

  Api const& api_;
  std::string name_;
  std::string device_id_;
  std::string compiler_;
  std::size_t alignment_;
  cl_context context_;
  std::shared_ptr<ProgramHandle const> program_;
  KernelHandle kernel_;
  Parameters parameters_;
  bool portable_ = false;
  std::size_t group_ = 0;  ///< a portable kernel runs in multiples of it, and then the rest; 0: at once
  std::array<std::size_t, 3> fixed_group_{};   ///< what the kernel itself demands; zeros: nothing
  std::array<std::size_t, 3> group_limits_{};  ///< of the device
  std::size_t most_items_ = 0;                 ///< in a work group of this kernel
  std::string asks_group_by_;                  ///< the portable name by which it does; empty: it does not
  bool asks_range_ = false;                    ///< it asks for the size of its range
  std::shared_ptr<PoclRunOrder> order_;        ///< null unless the driver is PoCL
  /// Arguments are state of the one kernel object (clSetKernelArg is the one call that is not thread-safe): setting
  /// them and enqueuing is one step.
  mutable std::mutex mutex_;
};

/// `program` as the device has made it. Throws KernelError for another's.
[[nodiscard]] OpenClProgram const& own_program(OpenClDevice const& device, Program const* program);

}  // namespace unimem::detail::opencl
