#pragma once

#include <unimem/device/device.hpp>

#include "device/opencl/built_programs.hpp"
#include "device/opencl/handle.hpp"
#include "device/opencl/hardware.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace unimem::detail::opencl {

class CommandStream;

/// What of a device is a choice.
struct OpenClOptions {
  bool shares = false;    ///< its memory is the host's
  bool profiles = false;  ///< the driver keeps the times of commands, which costs some of them much
  std::optional<std::size_t> staging_threshold{};  ///< see `Device::staging_threshold`
};

/// A device under OpenCL, in a context of its own or the user's (`adopt_context`). By default memory is separate from
/// the host's, as on a discrete GPU, even where the driver would share it (PoCL): buffers are `cl_mem` objects without
/// an address.
///
/// A device that *shares* allocates fine-grained shared virtual memory and wraps it in a `cl_mem`. That is the only
/// kind of OpenCL memory that host and kernels may touch through plain pointers without mapping:
/// `CL_MEM_ALLOC_HOST_PTR` kept mapped works on many drivers and is undefined by the specification, so a device without
/// the fine grain refuses `zero_copy=1`.
class OpenClDevice final : public Device {
 public:
  /// Throws UnsupportedOperation if it shall share and the hardware cannot, DeviceError if the driver refuses a
  /// context.
  OpenClDevice(std::string id, Hardware const& hardware, OpenClOptions options);
  /// The same in that context.
  OpenClDevice(std::string id, Hardware hardware, OpenClOptions options, ContextHandle context);

  /// Integrated GPUs that can share do; CPUs do not, so that PoCL stands for a discrete device.
  [[nodiscard]] static bool shares_by_default(Hardware const& hardware) noexcept;

  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override;
  void release(DeviceMemory memory, Location location) noexcept override;
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return options_.shares; }
  [[nodiscard]] void* address(DeviceMemory memory) override;
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& source) override;

  /// Measured when it is first asked for.
  [[nodiscard]] LinkCost link_cost() const noexcept override;

  /// None unless asked for (`staging=8MiB`), not even where memory is far from the host's: a driver takes for pinned
  /// what it has allocated itself, not what the system has locked, and a queue waits for the host's half of each chunk
  /// in the call that submits it, so that asynchronous copies would not return at once.
  [[nodiscard]] std::optional<std::size_t> staging_threshold() const noexcept override {
    return options_.staging_threshold;
  }

  [[nodiscard]] Api const& api() const noexcept { return *hardware_.api; }
  [[nodiscard]] Hardware const& hardware() const noexcept { return hardware_; }
  [[nodiscard]] OpenClOptions const& options() const noexcept { return options_; }
  [[nodiscard]] cl_context context() const noexcept { return context_.get(); }
  [[nodiscard]] cl_device_id native_id() const noexcept { return hardware_.device; }
  [[nodiscard]] bool is_pocl() const noexcept { return hardware_.is_pocl; }
  [[nodiscard]] std::string const& compiler() const noexcept { return hardware_.compiler; }

  [[nodiscard]] BuiltPrograms& programs() noexcept { return programs_; }

  /// See `adopt_queue`.
  [[nodiscard]] Queue adopt(cl_command_queue foreign);

  /// The stream behind a queue of this device, null if the queue is gone or another device's.
  [[nodiscard]] std::shared_ptr<CommandStream> stream(std::uint64_t queue_id);

 protected:
  [[nodiscard]] std::unique_ptr<QueueBackend> make_queue() override;

 private:
  [[noreturn]] void refuse(std::size_t bytes, std::size_t limit, std::string reason) const;
  [[nodiscard]] MemoryHandle make_object(std::size_t bytes);
  [[nodiscard]] std::unique_ptr<QueueBackend> queue_over(QueueHandle handle, bool profiles);
  [[nodiscard]] void* shared_address(cl_mem object) const noexcept;

  Hardware hardware_;
  OpenClOptions options_;
  ContextHandle context_;
  BuiltPrograms programs_;
  std::once_flag compiler_loaded_;
  mutable std::once_flag link_measured_;
  mutable LinkCost link_;
  std::mutex streams_mutex_;
  std::map<std::uint64_t, std::weak_ptr<CommandStream>> streams_;  ///< by queue id
};

}  // namespace unimem::detail::opencl
