#include "manager/residents.hpp"

#include <unimem/device/detail/blocking_wait.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

namespace unimem::detail {

void Residents::add(Resident& resident) {
  Lock const lock{mutex_};
  residents_.emplace(&resident, Threads{});
}

void Residents::remove(Resident& resident) noexcept {
  Lock lock{mutex_};
  auto const me = std::this_thread::get_id();
  ended_.wait(lock, [&] {
    auto const found = residents_.find(&resident);
    return found == residents_.end() || found->second.inside == std::thread::id{} || found->second.inside == me;
  });
  residents_.erase(&resident);
  removals_.fetch_add(1, std::memory_order_release);
}

bool Residents::retire(Resident& resident) noexcept {
  Lock lock{mutex_};
  auto const found = residents_.find(&resident);
  if (found == residents_.end()) return true;
  auto& threads = found->second;  // stays: its owner has not removed it
  threads.retired = true;
  auto const has_left = [&] { return threads.inside == std::thread::id{}; };
  if (has_left()) return true;
  if (threads.inside == std::this_thread::get_id()) return false;
  std::atomic const inside{threads.inside};
  BlockingWait wait{inside};
  return wait.run([&](auto until) { return ended_.wait_until(lock, until, has_left); });
}

bool Residents::begin_use(Resident& resident) {
  Lock const lock{mutex_};
  auto const found = residents_.find(&resident);
  if (found != residents_.end()) found->second.users.push_back(std::this_thread::get_id());
  return found != residents_.end();
}

void Residents::end_use(Resident& resident) noexcept {
  Lock const lock{mutex_};
  auto const found = residents_.find(&resident);
  if (found == residents_.end()) return;
  auto& users = found->second.users;
  auto const mine = std::ranges::find(users, std::this_thread::get_id());
  if (mine != users.end()) users.erase(mine);
}

namespace {

/// What taking a byte from it costs, spread over the time until it is wanted again.
double loss(Resident::Evictable const& offer) noexcept {
  if (offer.cost_seconds == 0) return 0;
  return offer.cost_seconds / static_cast<double>(offer.bytes) / offer.wait;
}

}  // namespace

Residents::Survey Residents::survey(std::span<const MemoryPlace> places) {
  Survey all;
  auto const me = std::this_thread::get_id();
  {
    Lock const lock{mutex_};
    all.candidates.reserve(residents_.size());
    for (auto const& [resident, threads] : residents_) {
      if (threads.inside == me || std::ranges::find(threads.users, me) != threads.users.end()) continue;
      bool const in_use = threads.retired || threads.inside != std::thread::id{} || !threads.users.empty();
      for (auto const place : places) {
        auto const offer = resident->evictable(place);
        all.leased += offer.leased;
        if (offer.busy || in_use) {
          all.busy += offer.bytes;
          all.busy_blocks += largest_block_of(offer.bytes);
          if (offer.busy) break;  // it says the same of every place
        } else if (offer.bytes != 0) {
          all.candidates.push_back({resident, offer, place});
        }
      }
    }
  }
  std::ranges::sort(all.candidates, [](Candidate const& a, Candidate const& b) {
    auto const &one = a.evictable, &other = b.evictable;
    return one.priority != other.priority ? one.priority < other.priority : loss(one) < loss(other);
  });
  return all;
}

template <class Call>
std::invoke_result_t<Call> Residents::enter(Resident& resident, Call const& call) {
  auto const me = std::this_thread::get_id();
  std::shared_ptr<void> held;  // goes last: with it the resident may end, and remove itself
  {
    Lock const lock{mutex_};
    auto const found = residents_.find(&resident);
    if (found == residents_.end()) return {};
    auto const& threads = found->second;
    if (threads.retired || threads.inside != std::thread::id{} || !threads.users.empty()) return {};
    held = resident.hold();
    if (held == nullptr) return {};
    found->second.inside = me;
  }
  /// However the call ends, threads that wait for it learn.
  struct Leaving {
    Residents& residents;
    Resident& resident;
    ~Leaving() {
      Lock const lock{residents.mutex_};
      auto const found = residents.residents_.find(&resident);
      if (found != residents.residents_.end()) found->second.inside = {};  // absent if the resident removed itself
      residents.ended_.notify_all();
    }
  } const leaving{*this, resident};
  return call();
}

std::size_t Residents::evict(Resident& resident, MemoryPlace place) {
  return enter(resident, [&] { return resident.evict(place); });
}

Resident::Relocation Residents::relocate(Resident& resident, Queue& queue, std::size_t most_bytes) {
  return enter(resident, [&] { return resident.try_relocate(queue, most_bytes); });
}

std::vector<Resident*> Residents::all() const {
  Lock const lock{mutex_};
  std::vector<Resident*> found;
  found.reserve(residents_.size());
  for (auto const& [resident, threads] : residents_) found.push_back(resident);
  return found;
}

OptimizationStep Residents::optimize(Resident& resident, Device& device, Optimization what,
                                     OptimizationTerms const& terms) {
  OptimizationStep step;
  step.what = what;
  enter(resident, [&] {
    step = resident.try_optimize(device, what, terms);
    return step.bytes;
  });
  return step;
}

}  // namespace unimem::detail
