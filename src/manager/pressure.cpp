#include "manager/pressure.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/device.hpp>

#include "core/start_thread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

namespace unimem {

std::string_view to_string(PressureLevel level) noexcept {
  switch (level) {
    case PressureLevel::none:
      return "none";
    case PressureLevel::moderate:
      return "moderate";
    case PressureLevel::high:
      return "high";
    case PressureLevel::critical:
      return "critical";
  }
  return "unknown";
}

PressureSubscription::PressureSubscription(std::shared_ptr<detail::Pressure> pressure, std::uint64_t id) noexcept
    : pressure_(std::move(pressure)), id_(id) {}

PressureSubscription::PressureSubscription(PressureSubscription&& other) noexcept
    : pressure_(std::move(other.pressure_)), id_(std::exchange(other.id_, 0)) {}

PressureSubscription& PressureSubscription::operator=(PressureSubscription&& other) noexcept {
  if (this == &other) return *this;
  end();
  pressure_ = std::move(other.pressure_);
  id_ = std::exchange(other.id_, 0);
  return *this;
}

PressureSubscription::~PressureSubscription() {
  end();
}

void PressureSubscription::end() noexcept {
  if (auto const pressure = std::exchange(pressure_, nullptr)) pressure->cancel(std::exchange(id_, 0));
}

namespace detail {
namespace {

void check(char const* name, double value, bool holds, char const* requirement) {
  if (!holds) throw InvalidArgument(name, fmt::format("{}", value), requirement);
}

std::array<double, 4> begins_of(PressureOptions const& options) {
  // Comparisons with what is no number are false, so each is put as what must hold.
  check("pressure.hysteresis", options.hysteresis, options.hysteresis >= 0 && options.hysteresis < 1,
        "0 or more, below 1");
  check("pressure.moderate", options.moderate, options.moderate > options.hysteresis && options.moderate < 1,
        "more than the hysteresis and below 1");
  check("pressure.high", options.high, options.high > options.moderate && options.high < 1,
        "more than where moderate begins, and below 1");
  check("pressure.critical", options.critical, options.critical > options.high && options.critical <= 1,
        "more than where high begins, and at most 1");
  return {0, options.moderate, options.high, options.critical};
}

PressureLevel next(PressureLevel level) noexcept {
  return static_cast<PressureLevel>(static_cast<int>(level) + 1);
}

PressureLevel previous(PressureLevel level) noexcept {
  return static_cast<PressureLevel>(static_cast<int>(level) - 1);
}

}  // namespace

Pressure::Pressure(PressureOptions const& options) : begins_(begins_of(options)), hysteresis_(options.hysteresis) {}

Pressure::~Pressure() {
  close();
}

// ---- Where a pool stands ---------------------------------------------------------------------------------------

std::size_t Pressure::part_of(std::size_t limit, double part) noexcept {
  auto const bytes = std::ceil(static_cast<double>(limit) * part);
  return bytes >= static_cast<double>(limit) ? limit : static_cast<std::size_t>(bytes);
}

std::size_t Pressure::begin_of(PressureLevel level, std::size_t limit) const noexcept {
  return level == PressureLevel::none ? 0 : part_of(limit, begins_[static_cast<std::size_t>(level)]);
}

std::size_t Pressure::end_of(PressureLevel level, std::size_t limit) const noexcept {
  return level == PressureLevel::none ? 0 : part_of(limit, begins_[static_cast<std::size_t>(level)] - hysteresis_);
}

PressureLevel Pressure::level_after(PressureLevel before, std::size_t live, std::size_t limit) const noexcept {
  auto level = before;
  while (level != PressureLevel::critical && live >= begin_of(next(level), limit)) level = next(level);
  while (level != PressureLevel::none && live < end_of(level, limit)) level = previous(level);
  return level;
}

void Pressure::update(MemoryPool& pool) {
  std::array const alone{&pool};
  bool const shares = std::ranges::find(sharing_, &pool) != sharing_.end();
  auto const pools = shares ? std::span<MemoryPool* const>{sharing_} : std::span<MemoryPool* const>{alone};
  // What others take and release meanwhile may leave the new marks at once: then once more, but not for ever.
  for (int tries = 0; tries < 3; ++tries) {
    Together together{.level = together_, .pools = pools.size()};
    for (auto* const each : pools) together.live += levels_[each].live = each->bytes_in_use();
    if (shares) {
      together.limit = std::min(whole_->bytes(), pool.device().info().total_bytes);
      together.level = together_ = level_after(together_, together.live, together.limit);
    }
    bool left = false;
    for (auto* const each : pools) left = update(*each, shares ? &together : nullptr) || left;
    if (!left) return;
  }
}

bool Pressure::update(MemoryPool& pool, Together const* together) {
  auto& standing = levels_[&pool];
  auto const limit = std::min(pool.max_bytes(), pool.device().info().total_bytes);
  standing.own = level_after(standing.own, standing.live, limit);
  bool const by_others = together != nullptr && together->level > standing.own;
  auto const before = standing.told, now = by_others ? together->level : standing.own;
  if (now != before) {
    if (!subscribers_.empty() && !over_ && !shutting_down_) {
      auto const [live, most] =
          by_others ? std::pair{together->live, together->limit} : std::pair{standing.live, limit};
      note({&pool.device(), pool.location(), before, now, live, most});
    }
    standing.told = now;
  }
  constexpr auto never = std::numeric_limits<std::size_t>::max();
  auto const above_of = [&](PressureLevel level, std::size_t most) {
    return level == PressureLevel::critical ? never : begin_of(next(level), most);
  };
  auto below = end_of(standing.own, limit), above = above_of(standing.own, limit);
  if (together != nullptr) {
    auto const part = [&](std::size_t bytes) { return bytes / together->pools; };
    auto const end = end_of(together->level, together->limit), begin = above_of(together->level, together->limit);
    if (end != 0) below = std::max(below, standing.live - std::min(standing.live, part(together->live - end)));
    if (begin != never) above = std::min(above, standing.live + std::max<std::size_t>(1, part(begin - together->live)));
  }
  return pool.set_marks(below, above);
}

void Pressure::note(PressureChange const& change) {
  if (pending_.size() >= most_pending) {
    auto const same_pool = [&](News const& news) {
      return news.change.device == change.device && news.change.location == change.location;
    };
    auto const last = std::find_if(pending_.rbegin(), pending_.rend(), same_pool);
    if (last != pending_.rend()) {
      ++counts_.merged;
      auto const before = last->change.before;
      last->change = change;
      last->change.before = before;
      last->last_subscriber = last_subscriber_;
      if (before != change.now) return;
      ++counts_.merged;  // they cancel each other
      pending_.erase(std::next(last).base());
      ended_.notify_all();
      return;
    }
  }
  pending_.push_back({change, last_news_ + 1, last_subscriber_});
  ++last_news_;
  wake_.notify_one();
}

void Pressure::watch(MemoryPool& pool, SharedLimit const* whole) {
  Lock const lock{mutex_};
  try {
    if (whole != nullptr) {
      sharing_.push_back(&pool);
      whole_ = whole;
    }
    update(pool);
  } catch (...) {
    levels_.erase(&pool);
    std::erase(sharing_, &pool);
    throw;
  }
}

void Pressure::look(MemoryPool& pool) noexcept {
  try {
    Lock const lock{mutex_};
    update(pool);
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the news; its marks are still left
  }
}

PressureLevel Pressure::level(MemoryPool& pool) const {
  Lock const lock{mutex_};
  auto const found = levels_.find(&pool);
  return found == levels_.end() ? PressureLevel::none : found->second.told;
}

// ---- Subscribers -------------------------------------------------------------------------------------------------

std::uint64_t Pressure::subscribe(PressureCallback callback) {
  if (!callback) throw InvalidArgument("callback", "nothing", "something that can be called");
  auto shared = std::make_shared<PressureCallback const>(std::move(callback));
  std::lock_guard const starting{starting_};
  bool const has_thread = [&] {
    Lock const lock{mutex_};
    return over_ || own_thread_.load(std::memory_order_relaxed) != std::thread::id{};
  }();
  if (!has_thread) {
    if (!enlisted_) enlisted_ = enlist(*this);
    if (enlisted_)
      thread_ = start_thread("callbacks about memory pressure", [self = shared_from_this()] { self->work(); });
  }
  Lock const lock{mutex_};
  if (!has_thread) {
    own_thread_.store(thread_.get_id(), std::memory_order_relaxed);
    // If the process is ending: no callback is called any more, nor waited for.
    shutting_down_ = shutting_down_ || !enlisted_;
  }
  subscribers_.emplace(last_subscriber_ + 1, std::move(shared));
  return ++last_subscriber_;
}

void Pressure::cancel(std::uint64_t id) noexcept {
  if (made_.inherited()) return;
  std::shared_ptr<PressureCallback const> last;  // what it has captured goes when no lock is held
  Lock lock{mutex_};
  if (auto const found = subscribers_.find(id); found != subscribers_.end()) {
    last = std::move(found->second);
    subscribers_.erase(found);
  }
  static_cast<void>(await_callback(lock, [&] { return called_ != id; }));
  lock.unlock();
}

bool Pressure::on_own_thread() const noexcept {
  return std::this_thread::get_id() == own_thread_.load(std::memory_order_relaxed);
}

template <class Over>
bool Pressure::await_callback(Lock& lock, Over const& over) noexcept {
  if (over()) return true;
  if (on_own_thread()) return false;
  BlockingWait wait{own_thread_};
  return wait.run([&](BlockingWait::Clock::time_point until) { return ended_.wait_until(lock, until, over); });
}

void Pressure::settle() {
  Lock lock{mutex_};
  if (on_own_thread()) return;
  auto const last = last_news_;  // what comes while this waits is not waited for: callbacks may make it for ever
  ended_.wait(lock, [&] { return has_told(last) || shutting_down_ || over_; });
}

bool Pressure::has_told(std::uint64_t news) const noexcept {
  bool const at_it = telling_ != 0 && telling_ <= news;
  return !at_it && (pending_.empty() || pending_.front().number > news);
}

Pressure::Counts Pressure::counts() const {
  Lock const lock{mutex_};
  return counts_;
}

void Pressure::close() noexcept {
  std::unique_lock starting{starting_};
  auto thread = std::move(thread_);
  {
    Lock const lock{mutex_};
    over_ = true;
    pending_.clear();
    levels_.clear();
    sharing_.clear();
  }
  starting.unlock();  // a callback that is going on may subscribe another
  wake_.notify_all();
  {
    Lock lock{mutex_};
    if (!await_callback(lock, [&] { return telling_ == 0; })) {
      if (thread.joinable()) thread.detach();
      return;
    }
  }
  if (thread.joinable()) thread.join();
  starting.lock();
  if (std::exchange(enlisted_, false)) discharge(*this);
  ended_.notify_all();
}

void Pressure::shut_down() noexcept {
  {
    Lock const lock{mutex_};
    shutting_down_ = true;
  }
  ended_.notify_all();
}

void Pressure::await_quiet(std::chrono::steady_clock::time_point until) noexcept {
  Lock lock{mutex_};
  if (on_own_thread()) return;  // a callback ends the process
  ended_.wait_until(lock, until, [&] { return telling_ == 0; });
}

void Pressure::work() noexcept {
  Lock lock{mutex_};
  own_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  while (true) {
    wake_.wait(lock, [&] { return over_ || (!shutting_down_ && !pending_.empty()); });
    if (over_) return;
    auto const news = pending_.front();
    pending_.pop_front();
    telling_ = news.number;
    tell(lock, news);
    telling_ = 0;
    ended_.notify_all();
  }
}

namespace {

/// False, and said so, if it throws.
bool call(PressureCallback const& callback, PressureChange const& change) noexcept {
  auto const complain = [](std::string_view what) {
    try {
      log(LogLevel::error, fmt::format("a callback for memory pressure has thrown: {}", what));
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the words
    }
  };
  try {
    callback(change);
    return true;
  } catch (std::exception const& error) {
    complain(error.what());
  } catch (...) {
    complain("no std::exception");
  }
  return false;
}

}  // namespace

void Pressure::tell(Lock& lock, News const& news) noexcept {
  for (auto at = subscribers_.begin();
       at != subscribers_.end() && at->first <= news.last_subscriber && !shutting_down_ && !over_;) {
    auto const id = at->first;
    auto callback = at->second;
    called_ = id;
    lock.unlock();
    bool const failed = !call(*callback, news.change);
    callback.reset();
    lock.lock();
    ++counts_.calls;
    if (failed) ++counts_.failures;
    called_ = 0;
    ended_.notify_all();
    at = subscribers_.upper_bound(id);  // others may have come and gone
  }
}

}  // namespace detail
}  // namespace unimem
