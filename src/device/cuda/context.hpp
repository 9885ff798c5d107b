#pragma once

#include "device/cuda/code.hpp"
#include "device/cuda/driver.hpp"

#include <string>

namespace unimem::detail::cuda {

/// What everything made on one GPU needs to know of it.
struct ContextRef {
  Driver const& driver;
  Context context;        ///< the GPU's primary context, which the CUDA runtime and other libraries share
  int architecture;       ///< 90 is compute capability 9.0
  std::string device_id;  ///< "cuda:0", for messages
};

/// Makes a context the calling thread's while it lives, and leaves the thread as it was: the context is a setting of
/// the thread, and the user's own CUDA code relies on his.
class CurrentContext {
 public:
  /// Throws DeviceError if the driver refuses.
  CurrentContext(Driver const& driver, Context context) : driver_(driver) {
    Context current = nullptr;
    if (driver.cuCtxGetCurrent(&current) == Result::success && current == context) return;
    check(driver, driver.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  explicit CurrentContext(ContextRef const& ref) : CurrentContext(ref.driver, ref.context) {}
  CurrentContext(CurrentContext const&) = delete;
  CurrentContext& operator=(CurrentContext const&) = delete;
  ~CurrentContext() {
    if (!pushed_) return;
    Context popped = nullptr;
    static_cast<void>(driver_.cuCtxPopCurrent(&popped));
  }

 private:
  Driver const& driver_;
  bool pushed_ = false;
};

}  // namespace unimem::detail::cuda
