#include "buffer/buffer_lock.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_terms.hpp"
#include "device/watched_wait.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace unimem::detail {
namespace {

[[noreturn]] void throw_lost(BufferTerms const& terms) {
  throw UnsupportedOperation(fmt::format("using {}", terms.display_name()), "a forked child process",
                             "a thread of the parent was in the middle of an operation on it");
}

}  // namespace

void BufferLock::lock_contended(BufferTerms const& terms, Watched watched) {
  using Moment = BlockingWait::Clock::time_point;
  WatchedWait watch{"waiting for another thread that uses a buffer", watched};
  BlockingWait wait{holder_, {.looks_out = watch.watched()}};
  constexpr std::chrono::microseconds longest{1000};
  std::chrono::microseconds pause{10};
  bool const locked = wait.run([&](Moment until) {
    bool const sleeps = until == Moment::max();
    while (!(sleeps ? mutex_.lock() : mutex_.try_lock())) {
      if (mutex_.is_lost()) throw_lost(terms);
      if (BlockingWait::Clock::now() >= until) {
        watch.look();
        return false;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest);
    }
    return true;
  });
  if (locked) return;
  throw UnsupportedOperation(fmt::format("using {}", terms.display_name()), "a kernel",
                             "the thread that is using it waits for this kernel, and would never end");
}

}  // namespace unimem::detail
