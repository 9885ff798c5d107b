#include <unimem/core/error.hpp>
#include <unimem/pool/idle_trimmer.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/held_over_fork.hpp"
#include "core/start_thread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace unimem {

class IdleTrimmer::Inside {
 public:
  Inside(MemoryPool& pool, std::chrono::nanoseconds interval)
      : pool_(pool),
        interval_(interval),
        held_(detail::HeldOverFork::Order::pool, mutex_, [this] { detail::HeldOverFork::renew(over_now_); }),
        thread_(detail::start_thread("trimming a pool", [this] { keep(); })) {}
  Inside(Inside const&) = delete;
  Inside& operator=(Inside const&) = delete;

  ~Inside() {
    {
      std::lock_guard const lock{mutex_};
      over_ = true;
    }
    over_now_.notify_all();
    thread_.join();
  }

 private:
  void keep() {
    std::unique_lock lock{mutex_};
    while (!over_now_.wait_for(lock, interval_, [this] { return over_; })) {
      lock.unlock();
      pool_.trim_idle();
      lock.lock();
    }
  }

  MemoryPool& pool_;
  std::chrono::nanoseconds const interval_;
  std::mutex mutex_;
  std::condition_variable over_now_;
  bool over_ = false;
  detail::HeldOverFork held_;
  std::thread thread_;  // last: it uses all of the above
};

IdleTrimmer::IdleTrimmer(MemoryPool& pool, std::chrono::nanoseconds interval) {
  if (interval.count() <= 0) {
    throw InvalidArgument("interval", fmt::format("{} ns", interval.count()), "more than none");
  }
  // Further ahead the clock's numbers end.
  inside_ = std::make_unique<Inside>(pool, std::min<std::chrono::nanoseconds>(interval, std::chrono::hours{24 * 365}));
}

IdleTrimmer::IdleTrimmer(IdleTrimmer&&) noexcept = default;
IdleTrimmer& IdleTrimmer::operator=(IdleTrimmer&&) noexcept = default;
IdleTrimmer::~IdleTrimmer() = default;

}  // namespace unimem
