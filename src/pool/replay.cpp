#include <unimem/pool/replay.hpp>

#include <unimem/device/queue.hpp>

#include "core/start_thread.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <semaphore>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using Clock = std::chrono::steady_clock;
using Events = std::span<AllocationLogEvent const>;

/// The blocks of a replay and the queues it uses them on: what all its threads share, one at a time.
class Player {
 public:
  Player(AllocationLog const& log, MemoryPool& pool) : pool_(pool), live_(log.most_live) {
    queues_.reserve(log.streams);
    for (std::uint32_t i = 0; i < log.streams; ++i) {
      // A queue that has had no work records nothing, and releases would carry no event: unlike a program's.
      queues_.push_back(pool.device().create_queue());
      queues_.back().mark().wait();
    }
  }

  /// Carries events out; returns how many, which are fewer if one did not fit.
  std::size_t play(Events events) {
    std::size_t done = 0;
    try {
      for (auto const& event : events) {
        auto& block = live_[event.slot];
        auto* const queue = event.stream == 0 ? nullptr : &queues_[event.stream - 1];
        if (event.allocates) {
          AcquireOptions options;
          options.queue = queue;
          block = pool_.acquire(event.bytes, options);
        } else {
          block.release(queue == nullptr ? Event{} : queue->record());
        }
        ++done;
      }
    } catch (OutOfMemory const&) {
      return done;  // it is the answer, not a failure
    }
    return done;
  }

 private:
  MemoryPool& pool_;
  std::vector<Queue> queues_;  // outlives the blocks, whose release may name one
  std::vector<Allocation> live_;
};

/// A thread that plays what it is handed, while the thread that handed it over waits: events of several threads keep
/// their order.
class PlayerThread {
 public:
  explicit PlayerThread(Player& player)
      : player_(player), thread_(detail::start_thread("a thread of the recording", [this] { work(); })) {}
  PlayerThread(PlayerThread const&) = delete;
  PlayerThread& operator=(PlayerThread const&) = delete;
  ~PlayerThread() {
    events_ = {};
    begin_.release();
    thread_.join();
  }

  /// Returns how many were carried out, and adds the time they took.
  std::size_t play(Events events, Clock::duration& time) {
    events_ = events;
    begin_.release();
    end_.acquire();
    if (failure_) std::rethrow_exception(failure_);
    time += time_;
    return done_;
  }

 private:
  void work() noexcept {
    for (begin_.acquire(); !events_.empty(); begin_.acquire()) {
      try {
        auto const begin = Clock::now();
        done_ = player_.play(events_);
        time_ = Clock::now() - begin;
      } catch (...) {
        failure_ = std::current_exception();
      }
      end_.release();
    }
  }

  Player& player_;
  Events events_;  ///< none: it is over
  std::size_t done_ = 0;
  Clock::duration time_{};
  std::exception_ptr failure_;
  std::binary_semaphore begin_{0};
  std::binary_semaphore end_{0};
  std::thread thread_;  // last: it uses the others
};

/// The least that two readings of the clock are apart.
Clock::duration clock_cost() {
  auto least = Clock::duration::max();
  for (int i = 0; i < 1'000; ++i) {
    auto const begin = Clock::now();
    least = std::min(least, Clock::now() - begin);
  }
  return least;
}

struct Played {
  std::size_t operations = 0;
  Clock::duration time{};
};

Played play_alone(AllocationLog const& log, MemoryPool& pool) {
  Player player(log, pool);
  auto const begin = Clock::now();
  auto const done = player.play(log.events);
  return {done, Clock::now() - begin};
}

Played play_in_turns(AllocationLog const& log, MemoryPool& pool) {
  Events const events = log.events;
  std::vector<std::size_t> last(log.threads);
  for (std::size_t i = 0; i < events.size(); ++i) last[events[i].thread] = i;

  auto const cost = clock_cost();
  Player player(log, pool);
  std::vector<std::unique_ptr<PlayerThread>> threads(log.threads);
  Played played;
  while (played.operations < events.size()) {
    auto const rest = events.subspan(played.operations);
    auto const number = rest.front().thread;
    auto const of_another = [number](auto const& event) { return event.thread != number; };
    auto const run = rest.first(static_cast<std::size_t>(std::ranges::find_if(rest, of_another) - rest.begin()));
    auto& thread = threads[number];
    if (!thread) thread = std::make_unique<PlayerThread>(player);
    auto const done = thread->play(run, played.time);
    played.time -= std::min(cost, played.time);
    played.operations += done;
    if (done < run.size()) break;
    if (last[number] < played.operations) thread.reset();
  }
  return played;
}

std::size_t peak_of(Events events) {
  std::size_t live = 0;
  std::size_t peak = 0;
  for (auto const& event : events) {
    live = event.allocates ? live + event.bytes : live - event.bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

ReplayResult replay(AllocationLog const& log, MemoryPool& pool) {
  auto const played = log.threads > 1 ? play_in_turns(log, pool) : play_alone(log, pool);
  ReplayResult result;
  result.operations = log.events.size();
  if (played.operations < log.events.size()) result.failed_at = played.operations;
  using Nanoseconds = std::chrono::duration<double, std::nano>;
  result.nanoseconds_per_operation = played.operations == 0
                                         ? std::numeric_limits<double>::quiet_NaN()
                                         : Nanoseconds(played.time).count() / static_cast<double>(played.operations);
  result.peak_live_bytes = peak_of(Events(log.events).first(played.operations));
  auto const statistics = pool.statistics();
  result.peak_reserved_bytes = statistics.peak_reserved_bytes;
  result.hit_rate = statistics.hit_rate();
  return result;
}

}  // namespace unimem
