#pragma once

#include "device/cuda/code.hpp"

#include <atomic>
#include <exception>

namespace unimem::detail::cuda {

/// Whether a GPU's context still lives. A fault of a kernel, or of the hardware, ends it for the whole process: every
/// later call reports that fault again, so that any call may be the one which learns of it. Thread-safe.
class Health {
 public:
  explicit Health(Driver const& driver) noexcept : driver_(driver) {}

  [[nodiscard]] bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }

  /// As the function of that name, and takes note of a fault that ends the context.
  void check(Result code, char const* call) {
    note(code);
    cuda::check(driver_, code, call);
  }
  [[nodiscard]] std::exception_ptr failure_of(Result code, char const* call) noexcept {
    note(code);
    return cuda::failure_of(driver_, code, call);
  }
  // Release: a thread that sees it comes behind the call that failed.
  void note(Result code) noexcept {
    if (is_fatal(code)) lost_.store(true, std::memory_order_release);
  }

 private:
  Driver const& driver_;
  std::atomic<bool> lost_{false};
};

}  // namespace unimem::detail::cuda
