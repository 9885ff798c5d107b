#include "share/peer_deaths.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "core/start_thread.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <string_view>
#include <utility>

namespace unimem {

PeerDeathSubscription::PeerDeathSubscription(std::shared_ptr<detail::PeerDeaths> deaths, std::uint64_t id) noexcept
    : deaths_(std::move(deaths)), id_(id) {}

PeerDeathSubscription::PeerDeathSubscription(PeerDeathSubscription&& other) noexcept
    : deaths_(std::move(other.deaths_)), id_(std::exchange(other.id_, 0)) {}

PeerDeathSubscription& PeerDeathSubscription::operator=(PeerDeathSubscription&& other) noexcept {
  if (this == &other) return *this;
  end();
  deaths_ = std::move(other.deaths_);
  id_ = std::exchange(other.id_, 0);
  return *this;
}

PeerDeathSubscription::~PeerDeathSubscription() {
  end();
}

void PeerDeathSubscription::end() noexcept {
  if (auto const deaths = std::exchange(deaths_, nullptr)) deaths->cancel(std::exchange(id_, 0));
}

namespace detail {

std::shared_ptr<PeerDeaths> PeerDeaths::of_this_process() {
  struct Own {
    std::shared_ptr<PeerDeaths> const deaths = std::make_shared<PeerDeaths>();
  };
  static constinit PerProcess<Own> instance;
  return instance.get().deaths;
}

std::shared_ptr<PeerDeaths::Run> PeerDeaths::make_run() {
  auto run = std::make_shared<Run>();
  run->wake = UniqueFd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!run->wake) throw IoError("eventfd", errno, "cannot watch for the ends of other processes");
  return run;
}

std::uint64_t PeerDeaths::subscribe(PeerDeathCallback callback) {
  if (!callback) throw InvalidArgument("callback", "nothing", "something that can be called");
  auto shared = std::make_shared<PeerDeathCallback const>(std::move(callback));
  std::shared_ptr<Run> fresh = make_run();  // it looks at books: not under the lock
  // Not under the lock either: as the process ends, the list is locked before this.
  std::call_once(enlist_once_, [this] { enlisted_ = enlist(*this); });
  Lock const lock{mutex_};
  shutting_down_ = shutting_down_ || !enlisted_;  // if the process is ending, no callback is called any more
  auto const added = subscribers_.emplace(last_ + 1, std::move(shared)).first;
  if (!run_ && !shutting_down_) {
    try {
      runs_.push_back(fresh);
      start_thread("callbacks about the deaths of processes", [self = shared_from_this(), fresh] {
        self->work(*fresh);
      }).detach();
    } catch (...) {
      std::erase(runs_, fresh);
      subscribers_.erase(added);
      throw;
    }
    run_ = std::move(fresh);
  }
  return ++last_;
}

void PeerDeaths::cancel(std::uint64_t id) noexcept {
  if (made_.inherited()) return;
  std::shared_ptr<PeerDeathCallback const> last;  // what it has captured goes when no lock is held
  Lock lock{mutex_};
  if (auto const found = subscribers_.find(id); found != subscribers_.end()) {
    last = std::move(found->second);
    subscribers_.erase(found);
  }
  if (subscribers_.empty() && run_) {
    run_->over = true;
    ::eventfd_write(run_->wake.get(), 1);
    run_ = nullptr;
  }
  std::shared_ptr<Run> calls;  // it is there to the end of the wait
  for (auto const& run : runs_) {
    if (run->called == id && run->calling.load() != std::this_thread::get_id()) calls = run;
  }
  if (calls) {
    BlockingWait wait{calls->calling};
    static_cast<void>(wait.run([&](BlockingWait::Clock::time_point until) {
      return ended_.wait_until(lock, until, [&] { return calls->called != id; });
    }));
  }
  lock.unlock();
}

bool PeerDeaths::is_called_here() const noexcept {
  return std::ranges::any_of(runs_, [](auto const& run) { return run->calling.load() == std::this_thread::get_id(); });
}

void PeerDeaths::shut_down() noexcept {
  Lock const lock{mutex_};
  shutting_down_ = true;
  for (auto const& run : runs_) ::eventfd_write(run->wake.get(), 1);
}

void PeerDeaths::await_quiet(std::chrono::steady_clock::time_point until) noexcept {
  Lock lock{mutex_};
  if (is_called_here()) return;  // a callback ends the process
  ended_.wait_until(lock, until, [&] { return runs_.empty(); });
}

void PeerDeaths::work(Run& run) noexcept {
  Lock lock{mutex_};
  while (!run.over && !shutting_down_) {
    lock.unlock();
    std::vector<PeerDeath> deaths;
    try {
      deaths = run.watch.look();
    } catch (std::exception const& error) {  // the next look finds the same
      log(LogLevel::warning, "cannot look whether other processes have died:");
      log(LogLevel::warning, error.what());
    }
    lock.lock();
    auto const last = last_;  // who comes while they are told was not there when they happened
    for (auto const& death : deaths) tell(lock, run, death, last);
    if (run.over || shutting_down_) break;
    lock.unlock();
    run.watch.wait(run.wake.get());
    lock.lock();
  }
  std::erase_if(runs_, [&](auto const& one) { return one.get() == &run; });
  ended_.notify_all();
}

namespace {

void call(PeerDeathCallback const& callback, PeerDeath const& death) noexcept {
  auto const complain = [](std::string_view what) {
    try {
      log(LogLevel::error, fmt::format("a callback for the death of a process has thrown: {}", what));
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the words
    }
  };
  try {
    callback(death);
  } catch (std::exception const& error) {
    complain(error.what());
  } catch (...) {
    complain("no std::exception");
  }
}

}  // namespace

void PeerDeaths::tell(Lock& lock, Run& run, PeerDeath const& death, std::uint64_t last) noexcept {
  for (auto at = subscribers_.begin(); at != subscribers_.end() && at->first <= last && !run.over && !shutting_down_;) {
    auto const id = at->first;
    auto callback = at->second;
    run.called = id;
    run.calling.store(std::this_thread::get_id());
    lock.unlock();
    call(*callback, death);
    callback.reset();
    lock.lock();
    run.called = 0;
    run.calling.store({});
    ended_.notify_all();
    at = subscribers_.upper_bound(id);  // others may have come and gone
  }
}

}  // namespace detail
}  // namespace unimem
