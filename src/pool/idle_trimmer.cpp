#include <unimem/core/error.hpp>
#include <unimem/pool/idle_trimmer.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/fork.hpp"
#include "core/start_thread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace unimem {

class IdleTrimmer::Worker {
 public:
  Worker(MemoryPool& pool, std::chrono::nanoseconds interval)
      : pool_(pool), interval_(interval), thread_(detail::start_thread("trimming a pool", [this] { keep(); })) {}
  Worker(Worker const&) = delete;
  Worker& operator=(Worker const&) = delete;

  ~Worker() {
    {
      std::lock_guard const lock{mutex_};
      over_ = true;
    }
    over_now_.notify_all();
    thread_.join();
  }

  [[nodiscard]] bool inherited() const noexcept { return made_.inherited(); }

 private:
  void keep() {
    std::unique_lock lock{mutex_};
    while (!over_now_.wait_for(lock, interval_, [this] { return over_; })) {
      lock.unlock();
      pool_.trim_idle();
      lock.lock();
    }
  }

  detail::MadeHere const made_{};
  MemoryPool& pool_;
  std::chrono::nanoseconds const interval_;
  std::mutex mutex_;
  std::condition_variable over_now_;
  bool over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

IdleTrimmer::IdleTrimmer(MemoryPool& pool, std::chrono::nanoseconds interval) {
  if (interval.count() <= 0) {
    throw InvalidArgument("interval", fmt::format("{} ns", interval.count()), "more than none");
  }
  // Further ahead the clock's numbers end.
  worker_ = std::make_unique<Worker>(pool, std::min<std::chrono::nanoseconds>(interval, std::chrono::hours{24 * 365}));
}

IdleTrimmer::IdleTrimmer(IdleTrimmer&&) noexcept = default;

IdleTrimmer& IdleTrimmer::operator=(IdleTrimmer&& other) noexcept {
  IdleTrimmer before{std::move(other)};
  std::swap(worker_, before.worker_);
  return *this;
}

IdleTrimmer::~IdleTrimmer() {
  // A forked child has not the thread.
  if (worker_ && worker_->inherited()) static_cast<void>(worker_.release());  // NOLINT(bugprone-unused-return-value)
}

}  // namespace unimem
