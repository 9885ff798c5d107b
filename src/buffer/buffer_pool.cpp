#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/buffer/detail/buffer_core.hpp>

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "buffer/free_list.hpp"
#include "core/fork.hpp"
#include "core/stack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace unimem {

using detail::BufferKind;
using detail::FreeList;

struct BufferPool::State {
  using Buffers = FreeList::Buffers;
  using Time = FreeList::Time;

  /// A buffer that is lent. The weak pointer tells if its owner has destroyed it: its address may be another
  /// buffer's then.
  struct Lent {
    std::weak_ptr<BufferCore> core;
    Buffers place;                           ///< what it will stand in on its shelf: its kind, and no buffer
    std::unique_ptr<detail::Trail> trail{};  ///< null: not captured
    [[nodiscard]] BufferKind const& kind() const noexcept { return place.front().kind; }
  };

  /// A buffer that was had back, for a second release by another handle. Where it was and whether it still is,
  /// as in Lent.
  struct HadBack {
    BufferCore const* address = nullptr;
    std::weak_ptr<BufferCore> core{};
    std::unique_ptr<detail::Trail> trail{};
  };
  static constexpr std::size_t most_had_back = 64;  ///< that are remembered

  /// What is kept apart for pageable and for pinned buffers.
  struct Half {
    FreeList shelf;
    BufferPoolStatistics counts;  ///< but what the shelf and the book know
  };

  explicit State(BufferPoolOptions options_)
      : options(std::move(options_)),
        manager(options.manager == nullptr ? nullptr : options.manager->share()),
        settings(options.settings),
        interval_ns(settings.trim_interval.count()) {}

  [[nodiscard]] Half& half(bool pinned) noexcept { return halves[pinned ? 1 : 0]; }
  [[nodiscard]] BufferPoolLimits const& limits(bool pinned) const noexcept {
    return pinned ? settings.pinned : settings.pageable;
  }

  [[nodiscard]] Time now() const { return options.clock ? options.clock() : std::chrono::steady_clock::now(); }
  /// Now, and the moment before which a kept buffer is too old. Asks the clock only if ages matter; no lock is held.
  [[nodiscard]] std::pair<Time, Time> now_and_expiry() const;

  // Under the lock. What is to be destroyed without it comes to `gone`.
  void evict_older_than(Time time, Buffers& gone) noexcept {
    for (auto& one : halves) one.shelf.evict_older_than(time, gone);
  }
  /// Moves the one buffer to its shelf, if it is admitted.
  void keep(Buffers& one, Time expiry, Buffers& gone);
  /// A buffer's entry in the book of those lent, made if need be.
  [[nodiscard]] Lent& entry_for(BufferCore const& core);
  /// Strikes a buffer out of the book; whether it is to be overwritten with zeros. Throws InvalidArgument.
  [[nodiscard]] bool take_back(BufferCore const& core, Buffers& place);
  /// The last time that a buffer was had back, if that is remembered; else null.
  [[nodiscard]] HadBack const* had_back_lately(BufferCore const& core) const noexcept;
  [[nodiscard]] BufferPoolStatistics statistics(bool pinned);

  /// The trail of a buffer that is being taken, if that is captured of this one. Without the lock.
  [[nodiscard]] std::unique_ptr<detail::Trail> trail_of_acquire();

  detail::MadeHere const made{};
  BufferPoolOptions const options;
  std::shared_ptr<MemoryManager> const manager;  ///< the one of the options, which may not outlive this
  std::mutex mutex;
  BufferPoolSettings settings;
  std::atomic<std::chrono::nanoseconds::rep> interval_ns;  ///< of the settings, for readers without the lock
  std::array<Half, 2> halves;
  std::unordered_map<BufferCore const*, Lent> lent;
  std::array<HadBack, most_had_back> had_back{};  ///< one after the other, the oldest overwritten
  std::size_t times_had_back = 0;
  detail::StackSampler sampler;
  std::uint64_t releases = 0;
  std::size_t look_at = 64;  ///< how many lent buffers make it worth looking for destroyed ones
};

std::pair<FreeList::Time, FreeList::Time> BufferPool::State::now_and_expiry() const {
  std::chrono::nanoseconds const interval{interval_ns.load(std::memory_order_relaxed)};  // about as old as it says
  if (interval.count() <= 0) return {Time{}, Time::min()};
  auto const time = now();
  return {time, time - interval};
}

void BufferPool::State::keep(Buffers& one, Time expiry, Buffers& gone) {
  auto& kept = one.front();
  auto& to = half(kept.kind.pinned);
  evict_older_than(expiry, gone);
  auto const& most = limits(kept.kind.pinned);
  if (!FreeList::admits(most, kept.kind)) return;
  to.shelf.make_room(most, kept.kind, gone);
  kept.number = ++releases;
  to.shelf.put(one);
  --to.counts.let_go;
  to.counts.peak_pooled_bytes = std::max(to.counts.peak_pooled_bytes, to.shelf.bytes());
}

BufferPool::State::Lent& BufferPool::State::entry_for(BufferCore const& core) {
  if (lent.size() >= look_at) {
    std::erase_if(lent, [](auto const& one) { return one.second.core.expired(); });
    look_at = std::max<std::size_t>(64, 2 * lent.size());
  }
  return lent[&core];
}

bool BufferPool::State::take_back(BufferCore const& core, Buffers& place) {
  std::unique_lock lock{mutex};
  auto const found = lent.find(&core);
  if (found != lent.end() && !found->second.core.expired()) {
    place = std::move(found->second.place);
    auto& trail = found->second.trail;
    if (trail != nullptr) trail->released.capture();
    had_back[times_had_back++ % most_had_back] = {&core, std::move(found->second.core), std::move(trail)};
    lent.erase(found);
    auto& counts = half(place.front().kind.pinned).counts;
    ++counts.released;
    ++counts.let_go;  // until it is kept
    return settings.zero_on_release;
  }
  ++half(core.options().pinned).counts.refused;
  auto const* const before = had_back_lately(core);
  bool const twice = before != nullptr;
  auto const trail = twice && before->trail != nullptr ? *before->trail : detail::Trail{};
  lock.unlock();
  auto const name = core.name();
  auto value = name.empty() ? std::string("one without a name") : fmt::format("'{}'", name);
  std::string requirement = "one that this buffer pool has lent and not had back since";
  if (!twice) throw InvalidArgument("buffer", std::move(value), std::move(requirement));
  auto const calls = [](detail::CallStack const& of) {
    return std::vector<std::uintptr_t>(of.calls().begin(), of.calls().end());
  };
  throw ReleasedTwice("buffer", std::move(value), std::move(requirement), calls(trail.acquired), calls(trail.released));
}

BufferPool::State::HadBack const* BufferPool::State::had_back_lately(BufferCore const& core) const noexcept {
  for (auto at = times_had_back; at != 0 && times_had_back - at < most_had_back; --at) {
    auto const& one = had_back[(at - 1) % most_had_back];
    if (one.address == &core && !one.core.expired()) return &one;
  }
  return nullptr;
}

std::unique_ptr<detail::Trail> BufferPool::State::trail_of_acquire() {
  auto const& stacks = (manager != nullptr ? *manager : default_manager()).stacks();
  return sampler.is_due(stacks) ? detail::begin_trail() : nullptr;
}

BufferPoolStatistics BufferPool::State::statistics(bool pinned) {
  auto const& from = half(pinned);
  auto result = from.counts;
  result.pooled_buffers = from.shelf.count();
  result.pooled_bytes = from.shelf.bytes();
  result.evicted = from.shelf.evicted();
  result.active_buffers = static_cast<std::size_t>(std::ranges::count_if(
      lent, [&](auto const& one) { return one.second.kind().pinned == pinned && !one.second.core.expired(); }));
  return result;
}

BufferPool::BufferPool(BufferPoolOptions options) : state_(std::make_unique<State>(std::move(options))) {}

BufferPool::~BufferPool() {
  if (state_->made.inherited()) static_cast<void>(state_.release());  // NOLINT(bugprone-unused-return-value): stays
}

BufferPool::State& BufferPool::state() const {
  state_->made.require("using a buffer pool");
  return *state_;
}

std::shared_ptr<BufferCore> BufferPool::acquire_core(BufferKind const& kind) {
  auto& state = this->state();
  auto const expiry = state.now_and_expiry().second;
  auto trail = state.trail_of_acquire();
  std::shared_ptr<BufferCore> core;
  {
    State::Buffers gone;  // destroyed without the lock
    std::lock_guard const lock{state.mutex};
    auto& half = state.half(kind.pinned);
    if (auto const* const found = half.shelf.find(kind)) {
      auto& entry = state.entry_for(*found->core);  // what comes then cannot fail
      entry.place.clear();                          // where a buffer that was destroyed had its address
      half.shelf.take(*found, entry.place);
      core = std::move(entry.place.front().core);
      entry.core = core;
      entry.trail = std::move(trail);
      ++half.counts.hits;
    }
    state.evict_older_than(expiry, gone);
  }
  if (core) return core;
  BufferOptions options;
  options.manager = state.manager.get();
  options.device = state.options.device;
  options.pinned = kind.pinned;
  options.name = state.options.name;
  options.name_use = NameUse::reports;  // one for all of the pool's
  core = BufferCore::make(kind.bytes, std::move(options));
  State::Buffers place;
  place.emplace_back(kind);
  std::lock_guard const lock{state.mutex};
  auto& entry = state.entry_for(*core);
  entry.core = core;
  entry.place = std::move(place);
  entry.trail = std::move(trail);
  ++state.half(kind.pinned).counts.misses;
  return core;
}

void BufferPool::release_core(std::shared_ptr<BufferCore>& handle) {
  if (!handle) detail::throw_empty_handle("buffer");
  if (state_->made.inherited()) return handle.reset();
  auto& state = this->state();
  State::Buffers gone, one;  // destroyed without the lock
  bool const zero = state.take_back(*handle, one);
  auto core = std::move(handle);
  // A slice has a share in it. Without one, the owner that let go of the last before us has done so for good.
  bool ours_alone = core.use_count() == 1;
  if (ours_alone) std::shared_ptr<BufferCore>(core).reset();  // and what it did is seen by the next owner
  bool const as_lent = core->size_bytes() == one.front().kind.bytes;
  if (!ours_alone) {
    if (zero) core->zero_at_end();  // for the others it is as it was
    return;
  }
  if (!core->recycle(zero) || !as_lent) return;
  auto const [now, expiry] = state.now_and_expiry();
  one.front().core = std::move(core);
  one.front().since = now;
  try {
    std::lock_guard const lock{state.mutex};
    state.keep(one, expiry, gone);
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch): documented, and counted as let go
  }
}

void BufferPool::report(std::exception const& failure) noexcept {
  log(LogLevel::error, "a pooled buffer could not be given back to its pool:");
  log(LogLevel::error, failure.what());
}

void BufferPool::clear() {
  static_cast<void>(trim(0));
}

std::size_t BufferPool::trim(std::size_t keep_bytes) {
  auto& state = this->state();
  auto const expiry = state.now_and_expiry().second;
  State::Buffers gone;  // destroyed without the lock
  std::lock_guard const lock{state.mutex};
  auto &pageable = state.half(false), &pinned = state.half(true);
  auto const kept = [&] { return pageable.shelf.bytes() + pinned.shelf.bytes(); };
  auto const before = kept();
  state.evict_older_than(expiry, gone);
  // Those without bytes go with the rest if nothing is to stay.
  while (kept() > keep_bytes || (keep_bytes == 0 && pageable.shelf.count() + pinned.shelf.count() != 0)) {
    auto const *const one = pageable.shelf.oldest(), *const other = pinned.shelf.oldest();
    auto& from = other == nullptr || (one != nullptr && one->number < other->number) ? pageable : pinned;
    from.shelf.evict_oldest(gone);
  }
  return before - kept();
}

void BufferPool::configure(BufferPoolSettings const& settings) {
  auto& state = this->state();
  auto const now = settings.trim_interval.count() > 0 ? state.now() : State::Time{};
  State::Buffers gone;  // destroyed without the lock
  std::lock_guard const lock{state.mutex};
  bool const had_ages = state.settings.trim_interval.count() > 0;
  state.settings = settings;
  state.interval_ns.store(settings.trim_interval.count(), std::memory_order_relaxed);
  for (auto const pinned : {false, true}) {
    auto& half = state.half(pinned);
    if (!had_ages) half.shelf.set_ages(now);
    half.shelf.shrink_to(state.limits(pinned), gone);
  }
}

BufferPoolSettings BufferPool::settings() const {
  std::lock_guard const lock{state().mutex};
  return state().settings;
}

BufferPoolStatistics BufferPool::stats(bool pinned) const {
  std::lock_guard const lock{state().mutex};
  return state().statistics(pinned);
}

BufferPoolStatistics BufferPool::stats() const {
  std::lock_guard const lock{state().mutex};
  auto sum = state().statistics(false);
  auto const other = state().statistics(true);
  sum.hits += other.hits;
  sum.misses += other.misses;
  sum.released += other.released;
  sum.let_go += other.let_go;
  sum.evicted += other.evicted;
  sum.refused += other.refused;
  sum.active_buffers += other.active_buffers;
  sum.pooled_buffers += other.pooled_buffers;
  sum.pooled_bytes += other.pooled_bytes;
  sum.peak_pooled_bytes += other.peak_pooled_bytes;
  return sum;
}

std::size_t BufferPool::pool_size() const {
  std::lock_guard const lock{state().mutex};
  return state().halves[0].shelf.count() + state().halves[1].shelf.count();
}

std::size_t BufferPool::total_bytes() const {
  std::lock_guard const lock{state().mutex};
  return state().halves[0].shelf.bytes() + state().halves[1].shelf.bytes();
}

void BufferPool::validate() const {
  std::lock_guard const lock{state().mutex};
  for (auto const pinned : {false, true}) {
    auto const& shelf = state().half(pinned).shelf;
    shelf.validate();
    auto const counts = state().statistics(pinned);
    auto const& limits = state().limits(pinned);
    auto const require = [](bool holds, char const* broken) {
      if (!holds) throw std::logic_error(std::string("BufferPool: ") + broken);
    };
    require(counts.released == counts.let_go + counts.hits + counts.evicted + counts.pooled_buffers,
            "released buffers are neither kept, nor lent again, nor gone");
    require(counts.pooled_bytes <= limits.max_bytes && counts.pooled_buffers <= limits.max_buffers,
            "more is kept than the limits allow");
    require(counts.pooled_bytes <= counts.peak_pooled_bytes, "a peak below the present");
  }
}

BufferPool& default_buffer_pool() {
  // Never destroyed, like the manager: its buffers would go to a manager and drivers that may be gone.
  static constinit detail::PerProcess<BufferPool> instance;
  return instance.get();
}

}  // namespace unimem
