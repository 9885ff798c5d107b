#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/wait_watch.hpp>

#include <Python.h>

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::python {

/// The end of the interpreter, as `atexit` tells of it: other threads than the one that ends it begin no more work in
/// Python once it comes, and when all such work has ended, and it begins, that thread alone may have its lock.
class Ending {
 public:
  /// Called by the thread that ends the interpreter, with its lock.
  static void come() noexcept {
    ender() = std::this_thread::get_id();
    coming().store(true, std::memory_order_release);  // with the thread's id
  }
  static void begin() noexcept { flag().store(true, std::memory_order_release); }
  /// Whether this thread is to begin no more.
  [[nodiscard]] static bool comes_for_this_thread() noexcept {
    return coming().load(std::memory_order_acquire) && ender() != std::this_thread::get_id();
  }
  /// Whether this thread can never have the interpreter's lock again.
  [[nodiscard]] static bool leaves_out_this_thread() noexcept { return begun() && comes_for_this_thread(); }
  [[nodiscard]] static bool begun() noexcept { return flag().load(std::memory_order_acquire); }

 private:
  static std::atomic<bool>& coming() noexcept {
    static std::atomic<bool> soon{false};
    return soon;
  }
  static std::atomic<bool>& flag() noexcept {
    static std::atomic<bool> ending{false};
    return ending;
  }
  static std::thread::id& ender() noexcept {
    static std::thread::id id;
    return id;
  }
};

/// Calls `take`, which takes the interpreter's lock. A thread that asks for the lock of an interpreter that is ending,
/// or waits for it then, is ended itself, by unwinding its stack: through what must not be unwound, which ends the
/// process. It sleeps until the process is gone.
template <class Take>
auto with_interpreter(Take const& take) noexcept {
  while (Ending::leaves_out_this_thread()) ::pause();
  try {
    return take();
  } catch (abi::__forced_unwind const&) {
    for (;;) ::pause();
  }
}

/// The interpreter's lock, taken while this lives, by a thread that may have it already.
class Locked {
 public:
  Locked() noexcept : state_(with_interpreter(&PyGILState_Ensure)) {}
  Locked(Locked const&) = delete;
  Locked& operator=(Locked const&) = delete;
  ~Locked() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

/// Under UNIMEM_CHECK=2 reports name the place in the Python program: whether that is so, and what keeps, for the
/// calling thread, where it is. With the interpreter's lock.
extern bool const names_places;
void note_place() noexcept;
/// What it kept, or where the thread is now if it is not in the library: nothing on threads without Python. For
/// `set_place_describer`.
[[nodiscard]] std::vector<std::string> noted_place() noexcept;

/// Whether Ctrl-C may end waits of this thread that are the library's own (`WaitWatch`): in calls that may fail.
inline thread_local bool waits_may_end = false;

/// The interpreter's lock, released while this lives: for what must not fail, such as letting go of memory.
class Unlocked {
 public:
  Unlocked() noexcept : outer_(std::exchange(waits_may_end, false)) {
    if (names_places) note_place();
    state_ = PyEval_SaveThread();
    if (names_places) ++depth();
  }
  Unlocked(Unlocked const&) = delete;
  Unlocked& operator=(Unlocked const&) = delete;
  ~Unlocked() {
    if (names_places) --depth();
    with_interpreter([this] { PyEval_RestoreThread(state_); });
    waits_may_end = outer_;
  }

  /// How many of these the calling thread has, where places are named.
  [[nodiscard]] static int& depth() noexcept;

 private:
  bool outer_;
  PyThreadState* state_;
};

/// Runs the handlers of the signals that have come, with the interpreter's lock, and throws what they raise.
void raise_interruption();

/// Has the library ask, while the main thread waits in `unlocked`, whether SIGINT has come.
void watch_waits();

/// Runs `work` with the interpreter's lock released: whatever waits, copies, computes or takes a lock of the library's.
/// A kernel written in Python needs the interpreter while another thread waits for it, so a thread that kept it while
/// waiting would wait for ever. `work` touches no Python object. On the main thread Ctrl-C ends its waits for other
/// threads, and KeyboardInterrupt comes out of this.
template <class F>
decltype(auto) unlocked(F&& work) {
  try {
    Unlocked const released;
    waits_may_end = true;
    return std::forward<F>(work)();
  } catch (WaitInterrupted const&) {
    raise_interruption();
    throw;
  }
}

/// Waits for the work to end without its error, with the interpreter's lock held on both sides of it. On the main
/// thread signals are looked at meanwhile, and what their handlers raise, such as KeyboardInterrupt, ends the waiting
/// and nothing else. False if `seconds` were over before. Throws UnsupportedOperation where the wait is a deadlock, as
/// `detail::await_end` finds out.
bool wait_for_end(Event event, double seconds = std::numeric_limits<double>::infinity());

/// Waits in the same way, on the main thread and inside of kernels alone, for what an access to a buffer is going to
/// wait for where no signal or kernel is looked at: the work under way, and the copies that the access needs, which are
/// started. Errors of that work are left for the access itself to raise. Called with the interpreter's lock, and a
/// share in the core.
void look_out_on_host(BufferCore& core, ByteRange range, Intent intent);
/// The same for bringing a device up to date.
void look_out_on_device(BufferCore& core, Device& device, ByteRange range);
/// For what waits for work and needs no copy.
void look_out(BufferCore& core, ByteRange range);
/// Waits for the work on the range inside of kernels alone, and looks at no signals: for what must not raise what they
/// do. Throws UnsupportedOperation where that would be waiting for itself.
void wait_inside_kernel(BufferCore& core, ByteRange range);
/// Waits for all work on the buffer, on any thread: for callers that are about to release memory, which a Python
/// function may have kept.
void wait_for_work(BufferCore& core);

/// Which thread is the main one is known once and for all, but for a forked child, whose only thread becomes it.
void main_thread_may_have_changed() noexcept;

}  // namespace unimem::python
