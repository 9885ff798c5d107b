#include "device/opencl/process_end.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace unimem::detail::opencl {
namespace {

std::atomic<bool> gone{false};
std::atomic<void (*)() noexcept> farewell{nullptr};
thread_local bool main_thread_over = false;  // nothing to destroy, so it can be read to the very end

/// Made on the main thread alone: a worker that ends still gives its memory back.
struct MainThreadEnd {
  MainThreadEnd() = default;
  MainThreadEnd(MainThreadEnd const&) = delete;
  MainThreadEnd& operator=(MainThreadEnd const&) = delete;
  ~MainThreadEnd() {
    if (!gone.load(std::memory_order_acquire)) farewell.load()();
    main_thread_over = true;
  }
};

}  // namespace

bool driver_gone() noexcept {
  return main_thread_over || gone.load(std::memory_order_acquire);
}

void watch_process_end(void (*last_act)() noexcept) {
  if (farewell.exchange(last_act) != nullptr) return;
  pthread_atfork(nullptr, nullptr, [] { gone.store(true, std::memory_order_release); });
  std::atexit([] {
    // Not in a forked child: it would wait for threads it does not have.
    if (!driver_gone()) farewell.load()();
    gone.store(true, std::memory_order_release);
  });
}

void watch_main_thread() noexcept {
  static thread_local bool const is_main = getpid() == gettid();
  if (is_main) {
    static thread_local MainThreadEnd const end;
    static_cast<void>(end);
  }
}

}  // namespace unimem::detail::opencl
