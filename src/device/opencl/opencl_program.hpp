#pragma once

#include <unimem/device/memory.hpp>
#include <unimem/device/program.hpp>

#include "device/opencl/command.hpp"
#include "device/opencl/handle.hpp"
#include "device/opencl/pocl_run_order.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail::opencl {

class OpenClDevice;

/// A kernel built for one device. It takes its arguments in one of two forms, told apart by how many parameters it has,
/// and where the driver tells them by the names that the prelude gives them:
///
/// - the portable form of docs/kernels.md: two parameters for a buffer (object and offset), one for a scalar;
/// - plain OpenCL C: one parameter for every argument. A window into an object then needs a sub-buffer of its own, and
/// an
///   integer is converted to the parameter's width where the compiler tells what that is.
class OpenClProgram final : public Program {
 public:
  /// Compiles. Throws KernelError with the log, or naming the kernels there are when the entry is missing.
  OpenClProgram(OpenClDevice const& device, ProgramSource const& source);
  ~OpenClProgram() override;

  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  [[nodiscard]] cl_context context() const noexcept { return context_; }

  /// Enqueues one run on behalf of `command`, which gets its events and the sub-buffers made for it. Throws KernelError
  /// if the arguments do not fit the kernel's parameters or a window starts where the device allows no sub-buffer,
  /// DeviceError if the driver refuses.
  void enqueue(Command& command, cl_command_queue queue, Range range, std::span<const KernelArgument> arguments) const;

 private:
  /// What the compiler tells of a parameter; known only where the driver keeps argument information.
  struct Parameter {
    bool known = false;
    bool is_pointer = false;  ///< to global or constant memory
    bool is_local = false;    ///< to local memory, which no argument can stand for
    std::string type;         ///< as the compiler spells it
    std::string name;         ///< empty where that is not known
  };

  void read_parameters();
  void read_groups(cl_device_id device);
  void read_group_limits(cl_device_id device);
  /// Groups that divide the range, as large as `group_` and the device allow: x first, then y, then z.
  [[nodiscard]] std::array<std::size_t, 3> group_of(Range range) const noexcept;
  /// One driver call of a run, in the order that the driver needs. The caller holds `mutex_`.
  void add(Command& command, cl_command_queue queue, cl_uint dimensions, std::size_t const* from,
           std::size_t const* items, std::size_t const* group) const;
  [[nodiscard]] bool is_portable(std::span<const KernelArgument> arguments) const;
  [[nodiscard]] std::vector<MemoryHandle> windows(std::span<const KernelArgument> arguments) const;
  [[nodiscard]] MemoryHandle window(std::size_t index, DeviceMemory memory) const;
  void check_kind(std::size_t parameter, std::size_t argument, KernelArgument::Kind kind) const;
  void set(std::size_t parameter, std::size_t argument, std::size_t bytes, void const* value) const;
  void set_scalar(std::size_t parameter, std::size_t argument, KernelArgument const& scalar) const;
  void set_arguments(std::span<const KernelArgument> arguments, std::span<const MemoryHandle> windows,
                     bool portable) const;

  Api const& api_;
  std::string name_;
  std::string device_id_;
  std::size_t alignment_;
  cl_context context_;
  ProgramHandle program_;
  KernelHandle kernel_;
  std::vector<Parameter> parameters_;
  bool said_portable_ = false;                 ///< by its parameters' names
  std::size_t group_ = 0;                      ///< items in a work group of a portable kernel; 0: the driver's choice
  std::array<std::size_t, 3> fixed_group_{};   ///< what the kernel itself demands; zeros: nothing
  std::array<std::size_t, 3> group_limits_{};  ///< of the device, where the library chooses all groups
  std::shared_ptr<PoclRunOrder> order_;        ///< null unless the driver is PoCL
  /// Arguments are state of the one kernel object (clSetKernelArg is the one call that is not thread-safe): setting
  /// them and enqueuing is one step.
  mutable std::mutex mutex_;
};

}  // namespace unimem::detail::opencl
