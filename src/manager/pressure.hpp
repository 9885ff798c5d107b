#pragma once

#include <unimem/manager/pressure.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/fork.hpp"
#include "device/worker_threads.hpp"
#include "pool/shared_limit.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace unimem::detail {

/// The pressure levels of a manager's pools, and their subscribers.
///
/// A pool knows between which two marks nothing changes, and only notes that they were left; a manager that has just
/// served a caller asks it that, which is a load, and comes here if they were. So a release costs nothing, and what
/// was released shows the next time the manager is asked for something.
///
/// Pools that share a limit are as full as that is, if that is more: what one takes may be what brings all of them over
/// a mark, though no single one knows how far the others are. So each notes when it has taken its part of what is left
/// to there, and all are looked at then: as often as halving that goes.
///
/// Callbacks run on a thread of their own, started for the first: the thread that crosses a mark may be deep in a
/// buffer and hold its lock, and no user code runs under a lock. There they come one after the other in the order in
/// which the levels changed; a callback that allocates, and crosses a mark by that, is told of it after it has
/// returned.
///
/// Thread-safe. The lock is taken before those of a pool and held in no callback.
class Pressure final : public BackgroundWorker, public std::enable_shared_from_this<Pressure> {
 public:
  struct Counts {
    std::uint64_t calls = 0;
    std::uint64_t failures = 0;  ///< of these, that threw
    std::uint64_t merged = 0;    ///< crossings that were not told by themselves
  };

  /// Crossings that may wait for their callbacks. When so many do, those of one pool are told as one: a callback that
  /// is stuck must not cost memory without end.
  static constexpr std::size_t most_pending = 1024;

  /// Throws InvalidArgument for thresholds that make no levels.
  explicit Pressure(PressureOptions const& options);
  virtual ~Pressure();

  /// From now on `pool` knows its marks. Once, when it is made; if it throws, nothing is known of the pool. `whole`, if
  /// not null: the limit that it shares with others, the same for all that share one.
  void watch(MemoryPool& pool, SharedLimit const* whole);

  /// Finds out where `pool` stands, and has a change told. Where there is no memory for that, a later look does it.
  void look(MemoryPool& pool) noexcept;

  /// The same, where its marks were left.
  void look_if_left(MemoryPool& pool) noexcept {
    if (pool.has_left_marks()) [[unlikely]]
      look(pool);
  }

  [[nodiscard]] PressureLevel level(MemoryPool& pool) const;

  /// Its number. It hears of what changes from now on. Throws what starting a thread throws.
  [[nodiscard]] std::uint64_t subscribe(PressureCallback callback);
  void cancel(std::uint64_t id) noexcept;

  /// Returns when all that was noticed before the call has been told, whatever comes meanwhile; at once if called from
  /// a callback.
  void settle();

  [[nodiscard]] Counts counts() const;

  /// The pools are gone: no callback is called any more. Waits for a call that is going on, unless it is this thread's,
  /// or waits for the work that this thread is in the middle of: then it goes on by itself, with a share in this.
  void close() noexcept;

  void shut_down() noexcept override;
  void await_quiet(std::chrono::steady_clock::time_point until) noexcept override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct News {
    PressureChange change;
    std::uint64_t number = 0;           ///< rising
    std::uint64_t last_subscriber = 0;  ///< later ones were not there yet
  };

  [[nodiscard]] static std::size_t part_of(std::size_t limit, double part) noexcept;
  [[nodiscard]] std::size_t begin_of(PressureLevel level, std::size_t limit) const noexcept;
  [[nodiscard]] std::size_t end_of(PressureLevel level, std::size_t limit) const noexcept;
  [[nodiscard]] PressureLevel level_after(PressureLevel before, std::size_t live, std::size_t limit) const noexcept;

  /// Where a pool stands.
  struct Standing {
    PressureLevel own = PressureLevel::none;   ///< by its own limit
    PressureLevel told = PressureLevel::none;  ///< that or where those stand that it shares one with
    std::size_t live = 0;                      ///< when it was last looked at
  };

  /// The same of all that share a limit.
  struct Together {
    PressureLevel level = PressureLevel::none;
    std::size_t live = 0;
    std::size_t limit = 0;
    std::size_t pools = 0;
  };

  // With the lock:
  void update(MemoryPool& pool);
  /// One of them, after `live` has been seen; `together` null: it shares no limit. Whether it is beyond its new marks.
  bool update(MemoryPool& pool, Together const* together);
  void note(PressureChange const& change);
  [[nodiscard]] bool has_told(std::uint64_t news) const noexcept;
  [[nodiscard]] bool on_own_thread() const noexcept;
  /// Waits until `over()`, which a callback that ends brings about; false if that would never be, since the callback is
  /// this thread's, or waits for the work that this thread is in the middle of.
  template <class Over>
  bool await_callback(Lock& lock, Over const& over) noexcept;
  void work() noexcept;
  void tell(Lock& lock, News const& news) noexcept;

  MadeHere const made_{};
  std::array<double, 4> const begins_;  ///< by level, parts of the limit
  double const hysteresis_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  std::map<MemoryPool const*, Standing> levels_;
  std::vector<MemoryPool*> sharing_;    ///< a limit
  SharedLimit const* whole_ = nullptr;  ///< that limit
  PressureLevel together_ = PressureLevel::none;
  std::map<std::uint64_t, std::shared_ptr<PressureCallback const>> subscribers_;
  std::uint64_t last_subscriber_ = 0;
  std::deque<News> pending_;  ///< by number
  std::uint64_t last_news_ = 0;
  Counts counts_;
  std::uint64_t called_ = 0;   ///< whose callback runs; 0: none
  std::uint64_t telling_ = 0;  ///< the number of the news that are being told; 0: none
  bool shutting_down_ = false;
  bool over_ = false;

  std::mutex starting_;  ///< taken before `mutex_`
  bool enlisted_ = false;
  std::thread thread_;
  std::atomic<std::thread::id> own_thread_{};  ///< changed with `mutex_`
};

/// Looks at a pool when it goes out of scope, however that comes about.
class PressureLook {
 public:
  PressureLook(Pressure& pressure, MemoryPool& pool) noexcept : pressure_(pressure), pool_(pool) {}
  PressureLook(PressureLook const&) = delete;
  PressureLook& operator=(PressureLook const&) = delete;
  ~PressureLook() { pressure_.look_if_left(pool_); }

 private:
  Pressure& pressure_;
  MemoryPool& pool_;
};

}  // namespace unimem::detail
