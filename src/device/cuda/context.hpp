#pragma once

#include "device/cuda/code.hpp"
#include "device/cuda/driver.hpp"

#include <cstddef>
#include <new>
#include <string>

namespace unimem::detail::cuda {

/// What everything made on one GPU needs to know of it.
struct ContextRef {
  Driver const& driver;
  Context context;        ///< the GPU's primary context, which the CUDA runtime and other libraries share
  int architecture;       ///< 90 is compute capability 9.0
  std::string device_id;  ///< "cuda:0", for messages
};

/// Throws the OutOfMemory of a driver that has no memory for `call`. The GPU's context is current.
[[noreturn]] void refuse_memory(ContextRef const& gpu, std::size_t bytes, char const* call);

/// How the calling thread stands to captures of streams into graphs, while this lives.
///
/// While anybody captures in the driver's default mode, calls that might wait, as those which allocate or ask whether
/// an event has come, are refused on every thread and break that capture, unless the thread has said that it knows what
/// it does (cuThreadExchangeStreamCaptureMode, "relaxed"). Ours have nothing to do with a user's capture.
class ThreadCaptureMode {
 public:
  ThreadCaptureMode(Driver const& driver, CaptureMode mode) noexcept
      : driver_(driver),
        before_(mode),
        exchanged_(driver.cuThreadExchangeStreamCaptureMode(&before_) == Result::success) {}
  ThreadCaptureMode(ThreadCaptureMode const&) = delete;
  ThreadCaptureMode& operator=(ThreadCaptureMode const&) = delete;
  ~ThreadCaptureMode() {
    if (exchanged_) static_cast<void>(driver_.cuThreadExchangeStreamCaptureMode(&before_));
  }

  /// What it was before.
  [[nodiscard]] CaptureMode before() const noexcept { return exchanged_ ? before_ : CaptureMode::global; }

 private:
  Driver const& driver_;
  CaptureMode before_;
  bool exchanged_;
};

/// Makes a context the calling thread's while it lives, and leaves the thread as it was: the context is a setting of
/// the thread, and the user's own CUDA code relies on his. Captures in other streams are none of ours meanwhile.
class CurrentContext {
 public:
  /// Throws DeviceError if the driver refuses.
  CurrentContext(Driver const& driver, Context context) : CurrentContext(driver, context, std::nothrow) {
    check(driver, code_, "cuCtxPushCurrent");
  }
  explicit CurrentContext(ContextRef const& gpu) : CurrentContext(gpu.driver, gpu.context) {}

  /// Where nothing may be thrown: `code()` says whether the context is current now.
  CurrentContext(ContextRef const& gpu, std::nothrow_t) noexcept
      : CurrentContext(gpu.driver, gpu.context, std::nothrow) {}

  CurrentContext(CurrentContext const&) = delete;
  CurrentContext& operator=(CurrentContext const&) = delete;
  ~CurrentContext() {
    if (!pushed_) return;
    Context popped = nullptr;
    static_cast<void>(driver_.cuCtxPopCurrent(&popped));
  }

  [[nodiscard]] Result code() const noexcept { return code_; }

 private:
  CurrentContext(Driver const& driver, Context context, std::nothrow_t) noexcept
      : driver_(driver), captures_(driver, CaptureMode::relaxed) {
    Context current = nullptr;
    if (driver.cuCtxGetCurrent(&current) == Result::success && current == context) return;
    code_ = driver.cuCtxPushCurrent(context);
    pushed_ = code_ == Result::success;
  }

  Driver const& driver_;
  ThreadCaptureMode const captures_;
  Result code_ = Result::success;
  bool pushed_ = false;
};

}  // namespace unimem::detail::cuda
