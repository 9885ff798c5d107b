#include "core/fork.hpp"

#include <unimem/core/error.hpp>

#include <pthread.h>

#include <new>

namespace unimem::detail {

constinit std::atomic<unsigned> Fork::forks_so_far{0};
constinit std::atomic<Fork::Hook const*> Fork::hooks{nullptr};

bool const Fork::registered = [] {
  if (pthread_atfork(nullptr, nullptr, begin_child) != 0) throw std::bad_alloc();
  return true;
}();

void Fork::begin_child() noexcept {
  forks_so_far.fetch_add(1, std::memory_order_relaxed);  // the child has one thread
  // Acquire: each hook is put before the others with a release, and by one exchange after the other.
  for (auto const* hook = hooks.load(std::memory_order_acquire); hook != nullptr; hook = hook->before_) hook->what_();
}

Fork::Hook::Hook(void (*what)() noexcept) noexcept : what_(what), before_(hooks.load(std::memory_order_relaxed)) {
  while (!hooks.compare_exchange_weak(before_, this, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

unsigned fork_depth() noexcept {
  return Fork::depth();
}

void throw_inherited(std::string_view what) {
  throw UnsupportedOperation(std::string(what), "a forked child process",
                             "it belongs to the parent; what a child makes itself can be used there");
}

}  // namespace unimem::detail
