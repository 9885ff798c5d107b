#include "manager/residents.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {

void Residents::add(Resident& resident) {
  Lock const lock{mutex_};
  inside_.emplace(&resident, std::thread::id{});
}

void Residents::remove(Resident& resident) noexcept {
  Lock lock{mutex_};
  auto const me = std::this_thread::get_id();
  ended_.wait(lock, [&] {
    auto const found = inside_.find(&resident);
    return found == inside_.end() || found->second == std::thread::id{} || found->second == me;
  });
  inside_.erase(&resident);
}

std::vector<Residents::Candidate> Residents::candidates(Device& device) {
  std::vector<Candidate> found;
  {
    Lock const lock{mutex_};
    found.reserve(inside_.size());
    for (auto const& [resident, thread] : inside_) {
      if (thread != std::thread::id{}) continue;
      auto const reclaimable = resident->reclaimable(device);
      if (reclaimable.bytes != 0) found.push_back({resident, reclaimable});
    }
  }
  std::ranges::sort(found, {}, [](Candidate const& candidate) {
    return candidate.reclaimable.cost_seconds / static_cast<double>(candidate.reclaimable.bytes);
  });
  return found;
}

std::size_t Residents::reclaim(Resident& resident, Device& device) {
  auto const me = std::this_thread::get_id();
  {
    Lock const lock{mutex_};
    auto const found = inside_.find(&resident);
    if (found == inside_.end() || found->second != std::thread::id{}) return 0;
    reclaiming_.push_back(me);
    found->second = me;
  }
  std::size_t bytes = 0;
  /// However the call ends, whoever waits for it learns.
  struct Leaving {
    Residents& residents;
    Resident& resident;
    std::thread::id thread;
    std::size_t const& bytes;
    ~Leaving() {
      Lock const lock{residents.mutex_};
      auto& all = residents.reclaiming_;
      all.erase(std::ranges::find(all, thread));
      auto const found = residents.inside_.find(&resident);
      if (found != residents.inside_.end()) found->second = {};  // absent if the resident removed itself
      if (bytes != 0) ++residents.reclaims_;
      residents.ended_.notify_all();
    }
  } const leaving{*this, resident, me, bytes};
  bytes = resident.try_reclaim(device);
  return bytes;
}

std::uint64_t Residents::reclaims() const {
  Lock const lock{mutex_};
  return reclaims_;
}

bool Residents::await_reclaim_since(std::uint64_t seen) {
  Lock lock{mutex_};
  bool const inside = std::ranges::find(reclaiming_, std::this_thread::get_id()) != reclaiming_.end();
  if (!inside) ended_.wait(lock, [&] { return reclaims_ != seen || reclaiming_.empty(); });
  return reclaims_ != seen;
}

}  // namespace unimem::detail
