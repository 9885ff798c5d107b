#include "device/cpu/thread_pool.hpp"

#include <unimem/core/log.hpp>

#include "device/brief_wait.hpp"
#include "device/current_task.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <utility>

namespace unimem::detail {
namespace {

/// Whether this thread is inside a piece: a loop begun there would wait for threads that may all be waiting likewise.
thread_local bool inside_piece = false;

std::size_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // Fails on machines with more than 1,024 cores, where the count without the affinity has to do.
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return static_cast<std::size_t>(CPU_COUNT(&cores));
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

/// One call of parallel_for, living on its caller's stack: the caller leaves only when `helpers` is zero.
struct ThreadPool::Loop {
  std::size_t const count;
  std::function<void(std::size_t)> const& piece;
  CurrentTask const* caller;
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> helpers{0};  ///< changed under the pool's lock alone
  std::once_flag failed{};
  std::exception_ptr failure{};
};

ThreadPool::ThreadPool(std::size_t threads) : threads_(std::max<std::size_t>(1, threads)) {}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard const lock{mutex_};
    closing_ = true;
  }
  work_.notify_all();
  for (auto& worker : workers_) worker.join();
}

ThreadPool& ThreadPool::shared() {
  static auto& pool = *new ThreadPool{usable_cores()};
  return pool;
}

void ThreadPool::parallel_for(std::size_t count, std::function<void(std::size_t)> const& piece) {
  if (count <= 1 || threads_ == 1 || inside_piece) {
    for (std::size_t i = 0; i < count; ++i) piece(i);
    return;
  }
  CurrentTask const at_work;
  Loop loop{count, piece, &at_work};
  {
    std::lock_guard const lock{mutex_};
    if (workers_.empty()) start_threads();
    loops_.push_back(&loop);
  }
  if (count > 2) {
    work_.notify_all();
  } else {
    work_.notify_one();
  }
  take_part(loop);
  {
    std::lock_guard const lock{mutex_};
    std::erase(loops_, &loop);  // no thread joins any more
  }
  // Acquire: what the helpers wrote in their pieces is visible to a thread that sees that they have left.
  auto const left = [&] { return loop.helpers.load(std::memory_order_acquire) == 0; };
  if (!comes_soon(left)) {
    std::unique_lock lock{mutex_};
    ended_.wait(lock, left);
  }
  if (loop.failure) std::rethrow_exception(loop.failure);
}

void ThreadPool::start_threads() {
  workers_.reserve(threads_ - 1);
  try {
    while (workers_.size() + 1 < threads_) workers_.emplace_back([this] { work(); });
  } catch (std::system_error const& error) {
    // The caller takes part itself, so a loop needs none of them.
    if (std::exchange(told_, true)) return;
    log(LogLevel::warning, fmt::format("loops of the cpu run on {} of {} threads, no more can be started: {}",
                                       workers_.size() + 1, threads_, error.what()));
  }
}

void ThreadPool::work() {
  std::unique_lock lock{mutex_};
  while (true) {
    work_.wait(lock, [&] { return closing_ || !loops_.empty(); });
    if (closing_) return;
    auto& loop = *loops_.front();
    loop.helpers.fetch_add(1, std::memory_order_relaxed);  // under the lock that the caller takes before it looks
    lock.unlock();
    take_part(loop);
    lock.lock();
    // Nothing left to begin there: others must not come for it, and the next round of this thread finds the next loop.
    std::erase(loops_, &loop);
    // The last touch of `loop`: its caller may be gone as soon as it sees zero.
    if (loop.helpers.fetch_sub(1, std::memory_order_release) == 1) ended_.notify_all();
  }
}

void ThreadPool::take_part(Loop& loop) noexcept {
  inside_piece = true;
  CurrentTask const at_work{loop.caller};
  try {
    // Relaxed: a piece's inputs were published by the lock under which the loop was found, its results are when the
    // helper leaves.
    for (std::size_t i = 0; (i = loop.next.fetch_add(1, std::memory_order_relaxed)) < loop.count;) loop.piece(i);
  } catch (...) {
    std::call_once(loop.failed, [&] { loop.failure = std::current_exception(); });
    loop.next.store(loop.count, std::memory_order_relaxed);
  }
  inside_piece = false;
}

}  // namespace unimem::detail
