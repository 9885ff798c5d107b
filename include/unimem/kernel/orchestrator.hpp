#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/event.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/launch.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace unimem {

/// Where one execution is to happen. What is left open is chosen.
struct ExecutionOptions {
  Queue* queue = nullptr;            ///< in its order, on its device
  Device* device = nullptr;          ///< on its default queue
  std::optional<Backend> backend{};  ///< a device of this one
  Device* default_device = nullptr;  ///< for an execution without buffers, in place of `default_device()`; no demand
};

/// Where an execution will happen, and why, in one sentence.
struct DeviceChoice {
  Device* device = nullptr;  ///< never null
  std::string reason;
};

/// Unless the options say where, an execution goes to where its data is. Of the devices that its buffers are at home on
/// or have been brought to, and that can run the kernel, the one where least is missing of what is read; among equals
/// the one that is home to the earliest argument. If none of them can run it, the cpu does, if it can; without
/// buffers, the default device likewise. Thread-safe. Throws InvalidArgument for options that contradict each other,
/// NotFound for a backend without a device, KernelError if the kernel lacks the form that each of the devices needs.
[[nodiscard]] UNIMEM_API DeviceChoice choose_device(Kernel const& kernel, std::span<const LaunchArgument> arguments,
                                                    ExecutionOptions const& options = {});

/// What one execution did.
struct KernelExecution {
  std::string name;    ///< the kernel's
  std::string device;  ///< the id of where it ran
  std::string reason;  ///< why there, in one sentence
  std::size_t items = 0;
  double seconds = 0;  ///< from the call until the kernel had ended, copies included; by the steady clock
  /// What the buffers' statistics grew by meanwhile, between host and devices and between devices: copies of the same
  /// buffers that other threads caused count too.
  std::uint64_t bytes_moved = 0;
  std::uint64_t copies = 0;
};

/// Kernels by name, and a device for each execution.
///
///     Orchestrator o;
///     o.register_kernel(scale);
///     auto const done = o.execute("scale", Range{n}, readwrite(x), 2.0f);
///
/// An execution goes to the device that `choose_device` tells.
///
/// Thread-safe. Kernels are handles: a registered one shares what it has built with its other copies.
class UNIMEM_API Orchestrator {
 public:
  Orchestrator();
  Orchestrator(Orchestrator const&) = delete;
  Orchestrator& operator=(Orchestrator const&) = delete;
  ~Orchestrator();

  /// Throws InvalidArgument if another kernel has its name, or if it was moved from. The same kernel may come again.
  void register_kernel(Kernel const& kernel);
  /// Forgets the kernel; what runs is not disturbed. Throws NotFound naming those there are.
  void unregister_kernel(std::string_view name);
  [[nodiscard]] bool has_kernel(std::string_view name) const;
  /// Throws NotFound naming those there are.
  [[nodiscard]] Kernel kernel(std::string_view name) const;
  /// In alphabetical order.
  [[nodiscard]] std::vector<std::string> kernel_names() const;

  /// Runs a registered kernel and waits for it. The arguments are those of `launch`, and ExecutionOptions may follow
  /// them. Throws what `launch` and waiting for its event throw; NotFound for a name that is not registered, or a
  /// backend without a device; InvalidArgument for options that contradict each other.
  template <class... A>
  KernelExecution execute(std::string_view name, Range range, A const&... arguments) {
    ExecutionOptions options;
    auto const list = take_arguments(options, arguments...);
    return execute_list(name, range, list, options);
  }

  /// The same without waiting: what `launch` returns.
  template <class... A>
  Event launch(std::string_view name, Range range, A const&... arguments) {
    ExecutionOptions options;
    auto const list = take_arguments(options, arguments...);
    return launch_list(name, range, list, options);
  }

  /// For arguments that are only known at run time.
  KernelExecution execute_list(std::string_view name, Range range, std::span<const LaunchArgument> arguments,
                               ExecutionOptions const& options = {});
  Event launch_list(std::string_view name, Range range, std::span<const LaunchArgument> arguments,
                    ExecutionOptions const& options = {});

 private:
  template <class... A>
  static auto take_arguments(ExecutionOptions& options, A const&... arguments) {
    constexpr std::size_t options_given = (std::size_t{0} + ... + std::size_t{std::is_same_v<A, ExecutionOptions>});
    static_assert(options_given <= 1, "ExecutionOptions are given once, after the arguments");
    std::array<LaunchArgument, sizeof...(A) - options_given> list{};
    std::size_t count = 0;
    auto const take = [&](auto const& argument) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(argument)>, ExecutionOptions>) {
        options = argument;
      } else {
        list[count++] = detail::launch_argument(argument);
      }
    };
    (take(arguments), ...);
    return list;
  }

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace unimem
