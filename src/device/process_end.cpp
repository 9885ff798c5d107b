#include "device/process_end.hpp"

#include "core/fork.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace unimem::detail {
namespace {

using LastAct = void (*)() noexcept;

/// What is done while drivers still stand, in the order in which they were loaded. Never destroyed: it is needed when
/// statics are.
struct Farewell {
  std::mutex mutex;
  std::vector<LastAct> acts;
};

Farewell& farewell() {
  static auto& instance = *new Farewell;
  return instance;
}

std::atomic<bool> gone{false};
thread_local bool main_thread_over = false;  // nothing to destroy, so it can be read to the very end

// `gone` is a release for the threads that go on: who sees it sees the last acts done.
void say_farewell() noexcept {
  if (gone.load(std::memory_order_acquire)) return;
  std::lock_guard const lock{farewell().mutex};
  for (auto* const act : farewell().acts) act();
}

/// Made on the main thread alone: a worker that ends still gives its memory back.
struct MainThreadEnd {
  MainThreadEnd() = default;
  MainThreadEnd(MainThreadEnd const&) = delete;
  MainThreadEnd& operator=(MainThreadEnd const&) = delete;
  ~MainThreadEnd() {
    say_farewell();
    main_thread_over = true;
  }
};

}  // namespace

bool driver_gone() noexcept {
  return main_thread_over || gone.load(std::memory_order_acquire);
}

void watch_process_end(LastAct last_act) {
  std::lock_guard const lock{farewell().mutex};
  auto& acts = farewell().acts;
  static Fork::Hook const leaves_drivers{[]() noexcept { gone.store(true, std::memory_order_release); }};
  if (std::ranges::find(acts, last_act) == acts.end()) acts.push_back(last_act);
  std::atexit([] {
    // Not in a forked child: it would wait for threads it does not have.
    if (!driver_gone()) say_farewell();
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

}  // namespace unimem::detail
