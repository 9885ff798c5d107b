#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>

#include "device/opencl_user_event.hpp"

#include <atomic>
#include <memory>
#include <optional>

namespace unimem {

/// Whether the device carries out its work inside the submitting call (Oclgrind): nothing is ever pending there.
inline bool works_in_the_submitting_thread(Device const& device) {
  return device.info().name.find("Oclgrind") != std::string::npos;
}

/// Holds a queue's later work back until it is destroyed, on every backend: what is pending can be seen without
/// sleeping. A kernel that waits where kernels are host code, an event of the driver's under OpenCL, a queue of the cpu
/// that is waited for under CUDA.
class Gate {
 public:
  explicit Gate(Queue& queue) {
    auto& device = queue.device();
    if (device.backend() == Backend::opencl) {
      event_.emplace(queue);
      return;
    }
    auto const waits = [open = open_](Range, std::size_t, std::size_t, auto) { open->wait(false); };
    if (device.info().runs_host_form) {
      queue.run(device.compile({"gate", "", waits}), Range{1}, {});
      return;
    }
    auto& cpu = unimem::device("cpu");
    keeper_.emplace(cpu.create_queue());
    queue.wait(keeper_->run(cpu.compile({"gate", "", waits}), Range{1}, {}));
  }
  Gate(Gate const&) = delete;
  Gate& operator=(Gate const&) = delete;
  ~Gate() {
    *open_ = true;
    open_->notify_all();
  }

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
  std::optional<Queue> keeper_;  ///< destroyed first, when it is open
  std::optional<UserEvent> event_;
};

}  // namespace unimem
