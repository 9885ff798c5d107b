#include "device/coroutine_thread.hpp"
#include "core/start_thread.hpp"

namespace unimem::detail {

CoroutineThread& CoroutineThread::instance() {
  static auto& instance = *new CoroutineThread;
  return instance;
}

CoroutineThread::CoroutineThread() : shutting_down_(!enlist(*this)) {}

bool CoroutineThread::start() {
  std::lock_guard const lock{mutex_};
  if (shutting_down_) return false;
  if (!thread_.joinable()) thread_ = start_thread("coroutines that wait for events", [this] { work(); });
  return true;
}

bool CoroutineThread::is_this_thread() noexcept {
  std::lock_guard const lock{mutex_};
  return thread_.get_id() == std::this_thread::get_id();
}

void CoroutineThread::resume(Continuations& awaiting, std::uint64_t last) noexcept {
  {
    std::lock_guard const lock{mutex_};
    if (!ready_.append_from(awaiting, last)) return;
  }
  wake_.notify_one();
}

void CoroutineThread::unlink(Continuation& continuation) noexcept {
  std::lock_guard const lock{mutex_};
  Continuations::unlink(continuation);
}

void CoroutineThread::shut_down() noexcept {
  std::lock_guard const lock{mutex_};
  shutting_down_ = true;
}

void CoroutineThread::await_quiet(std::chrono::steady_clock::time_point until) noexcept {
  if (is_this_thread()) return;  // a coroutine ends the process
  std::unique_lock lock{mutex_};
  quiet_.wait_until(lock, until, [&] { return !busy_; });
}

void CoroutineThread::work() noexcept {
  std::unique_lock lock{mutex_};
  while (true) {
    wake_.wait(lock, [&] { return !shutting_down_ && !ready_.empty(); });
    auto const coroutine = ready_.take_first().coroutine;
    busy_ = true;
    lock.unlock();
    coroutine.resume();
    lock.lock();
    busy_ = false;
    if (shutting_down_) quiet_.notify_all();
  }
}

}  // namespace unimem::detail
