#pragma once

#include <unimem/device/device.hpp>

#include <latch>
#include <memory>
#include <utility>

namespace unimem::testing {

/// Holds the default queue of a device up until `open()`, so that work can be submitted behind a failure that has not
/// happened yet. The kernel that waits runs on another device: it does not count in the fault plan of the one held.
class GateFromBeside {
 public:
  GateFromBeside(Device& held, Device& beside) {
    auto const program =
        beside.compile({"gate", "", [opened = opened_](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
                          opened->wait();
                        }});
    held.default_queue().wait(beside.default_queue().run(program, Range{1}, {}));
  }
  ~GateFromBeside() { open(); }
  void open() {
    if (!std::exchange(open_, true)) opened_->count_down();
  }

 private:
  bool open_ = false;
  std::shared_ptr<std::latch> opened_ = std::make_shared<std::latch>(1);  ///< the kernel may be the last to look
};

}  // namespace unimem::testing
