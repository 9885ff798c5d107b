#include "buffer/buffer_lock.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/buffer_terms.hpp"
#include "device/current_task.hpp"
#include "device/watched_wait.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

namespace unimem::detail {
namespace {

[[noreturn]] void throw_lost(BufferTerms const& terms) {
  throw UnsupportedOperation(fmt::format("using {}", terms.display_name()), "a forked child process",
                             "a thread of the parent was in the middle of an operation on it");
}

}  // namespace

void BufferLock::lock_contended(BufferTerms const& terms, Watched watched) {
  LongWait known{holder_};  // for threads that wait for this one
  std::optional<WatchedWait> wait;
  if (watched == Watched::yes) wait.emplace("waiting for another thread that uses a buffer");
  bool const ends_early = wait && wait->watched();
  if (CurrentTask::may_wait_for_any() && !ends_early) {
    if (!mutex_.lock()) throw_lost(terms);
    return;
  }
  constexpr std::chrono::microseconds longest{1000};
  for (std::chrono::microseconds pause{10}; !mutex_.try_lock(); pause = std::min(2 * pause, longest)) {
    if (mutex_.is_lost()) throw_lost(terms);
    if (ends_early) wait->look();
    if (known.never_ends()) {
      throw UnsupportedOperation(fmt::format("using {}", terms.display_name()), "a kernel",
                                 "the thread that is using it waits for this kernel, and would never end");
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace unimem::detail
