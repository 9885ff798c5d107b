#include "core/held_over_fork.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::detail {

struct HeldOverFork::Entry {
  Entry(Order in_order, Acts&& to_do) : order(in_order), acts(std::move(to_do)) {}

  Order const order;
  Acts const acts;
  std::mutex mutex;   ///< held over a fork as long as `acts` are
  bool gone = false;  ///< they may not be called any more
};

/// All there are. No thread waits for anything else while holding its mutex, which is taken last: a thread that holds
/// locks that a fork waits for may enlist more.
class HeldOverFork::Registry {
 public:
  /// Never destroyed: processes fork while static objects go.
  [[nodiscard]] static Registry& instance() {
    static auto& registry = *new Registry;
    return registry;
  }

  void add(std::shared_ptr<Entry> entry) {
    std::lock_guard const lock{mutex_};
    auto const place = std::ranges::upper_bound(entries_, entry->order, {}, &Entry::order);
    entries_.insert(place, std::move(entry));
    ++additions_;
  }

  void remove(Entry const& entry) noexcept {
    std::lock_guard const lock{mutex_};
    std::erase_if(entries_, [&](auto const& one) { return one.get() == &entry; });
  }

 private:
  static constexpr std::chrono::seconds patience{10};

  Registry() {
    auto const failed = pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork(false); },
                                       [] { instance().after_fork(true); });
    if (failed != 0) throw std::bad_alloc();
  }

  void before_fork() noexcept {
    auto const deadline = std::chrono::steady_clock::now() + patience;
    if (!lock_by(deadline, forking_)) return;
    forker_ = std::this_thread::get_id();
    for (;;) {
      auto const additions = hold_all(deadline);
      mutex_.lock();
      if (additions == additions_ || std::chrono::steady_clock::now() > deadline) return;
      mutex_.unlock();  // something has been enlisted since, and may be in use
      let_go(false);
    }
  }

  void after_fork(bool in_child) noexcept {
    if (in_child) HeldOverFork::forks_so_far.fetch_add(1, std::memory_order_relaxed);
    if (forker_ != std::this_thread::get_id()) return;
    mutex_.unlock();
    let_go(in_child);
    forker_ = std::thread::id{};
    forking_.unlock();
  }

  /// Holds what can be had, and returns how many had been added by then.
  std::uint64_t hold_all(Deadline deadline) noexcept {
    std::vector<std::shared_ptr<Entry>> entries;
    std::uint64_t additions = 0;
    try {
      std::lock_guard const lock{mutex_};
      additions = additions_;
      held_.reserve(entries_.size());
      entries = entries_;
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the list: nothing is held
    }
    for (auto& entry : entries) {
#ifdef __SANITIZE_THREAD__
      if (entry->order != Order::last) continue;
#endif
      if (!lock_by(deadline, entry->mutex)) continue;
      if (!entry->gone && entry->acts.hold(deadline)) {
        held_.push_back(std::move(entry));
      } else {
        entry->mutex.unlock();
      }
    }
    return additions;
  }

  void let_go(bool in_child) noexcept {
    while (!held_.empty()) {
      auto const entry = std::move(held_.back());
      held_.pop_back();
      entry->acts.let_go(in_child);
      entry->mutex.unlock();
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Entry>> entries_;  ///< in their order
  std::uint64_t additions_ = 0;

  std::mutex forking_;                        ///< one thread at a time; taken before all others
  std::atomic<std::thread::id> forker_{};     ///< the thread that holds it, which knows that for sure
  std::vector<std::shared_ptr<Entry>> held_;  ///< by him
};

HeldOverFork::HeldOverFork(Order order, Acts acts) : entry_(std::make_shared<Entry>(order, std::move(acts))) {
  Registry::instance().add(entry_);
}

HeldOverFork::HeldOverFork(Order order, std::mutex& mutex, std::function<void()> in_child)
    : HeldOverFork(order, hold_mutex(mutex, std::move(in_child))) {}

HeldOverFork::~HeldOverFork() {
  {
    std::lock_guard const lock{entry_->mutex};
    entry_->gone = true;
  }
  Registry::instance().remove(*entry_);
}

bool HeldOverFork::for_good(Order order, Acts acts) {
  Registry::instance().add(std::make_shared<Entry>(order, std::move(acts)));
  return true;
}

bool HeldOverFork::for_good(Order order, std::mutex& mutex) {
  return for_good(order, hold_mutex(mutex, {}));
}

HeldOverFork::Acts HeldOverFork::hold_mutex(std::mutex& mutex, std::function<void()> in_child) {
  return {[&mutex](Deadline deadline) { return lock_by(deadline, mutex); },
          [&mutex, put_right = std::move(in_child)](bool here) {
            if (here && put_right) put_right();
            mutex.unlock();
          }};
}

bool HeldOverFork::lock_by(Deadline deadline, std::mutex& mutex) noexcept {
  return wait_by(deadline, [&] { return mutex.try_lock(); });
}

bool HeldOverFork::pause(Deadline deadline, unsigned looks) noexcept {
  using namespace std::chrono_literals;
  constexpr unsigned often = 1000;
  if (looks < often) {
    std::this_thread::yield();
    return true;
  }
  std::this_thread::sleep_for(50us);
  return std::chrono::steady_clock::now() < deadline;
}

}  // namespace unimem::detail
