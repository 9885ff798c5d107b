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
  removals_.fetch_add(1, std::memory_order_release);  // with it that its memory has come back
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

std::vector<ByteRange> Residents::Threads::used_by(std::thread::id thread) const {
  std::vector<ByteRange> parts;
  for (auto const& user : users) {
    if (user.thread == thread) parts.push_back(user.part);
  }
  return parts;
}

std::vector<ByteRange> Residents::Threads::used_by_any() const {
  std::vector<ByteRange> parts;
  parts.reserve(users.size());
  for (auto const& user : users) parts.push_back(user.part);
  return parts;
}

bool Residents::Threads::has_others_than(std::thread::id thread) const noexcept {
  auto const is_other = [&](User const& user) { return user.thread != thread; };
  return retired || inside != std::thread::id{} || std::ranges::any_of(users, is_other);
}

bool Residents::begin_use(Resident& resident, ByteRange part) {
  Lock const lock{mutex_};
  auto const found = residents_.find(&resident);
  if (found != residents_.end()) found->second.users.push_back({std::this_thread::get_id(), part});
  return found != residents_.end();
}

void Residents::end_use(Resident& resident) noexcept {
  Lock const lock{mutex_};
  auto const found = residents_.find(&resident);
  if (found == residents_.end()) return;
  auto& users = found->second.users;
  auto const mine = std::ranges::find(users, std::this_thread::get_id(), &User::thread);
  if (mine != users.end()) users.erase(mine);
}

Residents::Survey Residents::survey(std::span<const MemoryPlace> places) {
  Survey all;
  auto const me = std::this_thread::get_id();
  {
    Lock const lock{mutex_};
    all.candidates.reserve(residents_.size());
    for (auto const& [resident, threads] : residents_) {
      auto const used_here = threads.users.empty() ? std::vector<ByteRange>{} : threads.used_by(me);
      for (auto const place : places) {
        // This thread may be inside, to save what goes from elsewhere: room for that may come from here.
        bool const beside_users = resident->gives_beside_users(place);
        if (threads.inside == me && !beside_users) continue;
        bool const in_use = beside_users ? threads.is_closed_to(me) : threads.has_others_than(me);
        auto const used = beside_users ? threads.used_by_any() : used_here;
        auto const offer = resident->evictable(place, used);
        all.leased += offer.leased;
        if (offer.busy || in_use) {
          all.busy += offer.bytes + offer.more;
          all.busy_blocks += largest_block_of(offer.bytes + offer.more);
          if (offer.busy) break;  // it says the same of every place
        } else if (offer.bytes != 0) {
          all.candidates.push_back({resident, offer, place});
        }
      }
    }
  }
  std::ranges::sort(all.candidates, [](Candidate const& a, Candidate const& b) {
    auto const &one = a.evictable, &other = b.evictable;
    return one.priority != other.priority ? one.priority < other.priority : one.loss() < other.loss();
  });
  return all;
}

template <class Call>
auto Residents::enter(Resident& resident, std::optional<MemoryPlace> place, Call const& call) {
  using Result = std::invoke_result_t<Call, std::span<const ByteRange>>;
  auto const me = std::this_thread::get_id();
  std::vector<ByteRange> used;
  std::thread::id before;      // this thread, if it is inside already
  std::shared_ptr<void> held;  // goes last: with it the resident may end, and remove itself
  {
    Lock const lock{mutex_};
    auto const found = residents_.find(&resident);
    if (found == residents_.end()) return Result{};
    auto const& threads = found->second;
    bool const all = place && resident.gives_beside_users(*place);
    if (all ? threads.is_closed_to(me) : threads.has_others_than(me)) return Result{};
    if (!threads.users.empty()) used = all ? threads.used_by_any() : threads.used_by(me);
    held = resident.hold();
    if (held == nullptr) return Result{};
    before = std::exchange(found->second.inside, me);
  }
  /// However the call ends, threads that wait for it learn.
  struct Leaving {
    Residents& residents;
    Resident& resident;
    std::thread::id before;
    ~Leaving() {
      Lock const lock{residents.mutex_};
      auto const found = residents.residents_.find(&resident);
      if (found != residents.residents_.end()) found->second.inside = before;  // absent if the resident removed itself
      residents.ended_.notify_all();
    }
  } const leaving{*this, resident, before};
  return call(std::span<const ByteRange>(used));
}

std::size_t Residents::evict(Resident& resident, MemoryPlace place) {
  return enter(resident, place, [&](std::span<const ByteRange> used) { return resident.evict(place, used); });
}

Resident::Relocation Residents::relocate(Resident& resident, Queue& queue, std::size_t most_bytes) {
  return enter(resident, std::nullopt, [&](std::span<const ByteRange> used) {
    return used.empty() ? resident.try_relocate(queue, most_bytes) : Resident::Relocation{};
  });
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
  enter(resident, std::nullopt, [&](std::span<const ByteRange> used) {
    if (used.empty()) step = resident.try_optimize(device, what, terms);
    return step.bytes;
  });
  return step;
}

}  // namespace unimem::detail
