#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "manager/manager_state.hpp"
#include "manager/operate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// How a manager comes by memory when there is none: the ladder of MemoryManager::take, each rung of which is followed
// by another try, and the turns in which threads climb it.

namespace unimem {
namespace {

/// Host memory is often taken with a buffer's lock held, which those that are waited for may be waiting for in turn.
constexpr std::chrono::milliseconds patience_with_a_lock{200};

/// The manager that makes room for a wish of this thread: what its residents ask of it meanwhile is part of that wish,
/// and refused alone it is no refusal.
thread_local void const* making_room = nullptr;

class MakingRoom {
 public:
  explicit MakingRoom(void const* manager) noexcept : outer_(std::exchange(making_room, manager)) {}
  MakingRoom(MakingRoom const&) = delete;
  MakingRoom& operator=(MakingRoom const&) = delete;
  ~MakingRoom() { making_room = outer_; }

 private:
  void const* outer_;
};

/// One wish, tried as often as there is new hope for it.
struct Wish {
  MemoryPool& pool;
  std::size_t bytes;
  AcquireOptions const& options;
  std::size_t outstanding;  ///< what its operation has yet to take, this included
  Allocation block{};
  OutOfMemory::Facts facts{};  ///< of the last refusal
  detail::Operation* operation = nullptr;
  detail::TakenMemory* taken = nullptr;  ///< where it is counted as the operation's once it is granted; null: nowhere
  detail::HostLimit const* host = nullptr;  ///< the limit that its pool shares with others, if it shares one

  /// Whether it was that limit that refused it: the pool may have less than its own leaves it.
  [[nodiscard]] bool is_refused_by_host() const {
    return host != nullptr && facts.limit < std::min(pool.max_bytes(), pool.device().info().total_bytes);
  }

  /// What others had of that limit when it refused.
  [[nodiscard]] std::size_t beside() const {
    return is_refused_by_host() ? host->bytes() - std::min(host->bytes(), facts.limit) : 0;
  }

  /// Whether `block` now holds the memory.
  [[nodiscard]] bool granted() {
    detail::TakenMemory::Attempt const attempt{taken, bytes};
    try {
      block = pool.acquire(bytes, options);
    } catch (OutOfMemory const& error) {
      facts = error.facts();
      return false;
    }
    if (taken != nullptr) operation->count_taken(*taken, bytes);
    return true;
  }

  /// Whether somebody has given memory back since it was refused, with nobody having been asked: a buffer that ended or
  /// was freed meanwhile, of which nothing else need tell.
  [[nodiscard]] bool outdated() const {
    if (pool.bytes_in_use() < facts.live) return true;
    return is_refused_by_host() && host->share(pool.location())->most() > facts.limit;
  }

  /// Whether it is granted in the end: once more if there is `hope`, and as often as memory has come back since.
  [[nodiscard]] bool granted_after_all(bool hope) {
    for (bool again = hope || outdated(); again; again = outdated()) {
      if (granted()) return true;
    }
    return false;
  }

  /// Of a limit that is shared they are those of all that share it.
  [[nodiscard]] OutOfMemory::Facts all_facts() {
    if (is_refused_by_host()) host->complete(facts, pool);
    return std::move(facts);
  }

  /// Whether there is as much free as it takes, but beside blocks in use.
  [[nodiscard]] bool lies_in_pieces() const {
    return facts.live <= facts.limit && bytes <= facts.limit - facts.live && pool.statistics().slack_bytes != 0;
  }

  /// Whether all that its operation needs could be granted if all candidates gave what they have, and others so many
  /// bytes besides. They may count the bytes they asked for, and blocks are up to an eighth, or 4 KiB, larger.
  [[nodiscard]] bool within_reach(std::vector<detail::Residents::Candidate> const& candidates,
                                  std::size_t others = 0) const noexcept {
    constexpr std::size_t block_slack = 4096;
    std::size_t most = others;
    for (auto const& candidate : candidates) {
      auto const reclaimable = candidate.reclaimable.bytes;
      most += reclaimable + std::max(reclaimable / 8, block_slack);
    }
    // What residents give goes to the device's own pool first: of another's limit it says nothing.
    if (pool.location() == Location::unified) return most != 0;
    // What refused may be a container, which counts what is in nobody's pool.
    bool const of_the_host = pool.location() != Location::device;
    if (of_the_host && facts.limit != pool.max_bytes() && !is_refused_by_host()) return most != 0;
    auto const limit = facts.limit + beside(), live = facts.live + beside();
    auto const pinned = live > most ? live - most : 0;
    return pinned <= limit && outstanding <= limit - pinned;
  }
};

/// The turn to make room, for as long as this lives, unless the thread has it anyway or somebody else does.
class Turn {
 public:
  explicit Turn(detail::Turns& turns) : turns_(turns), taken_(!turns.mine() && turns.try_take()) {}
  Turn(Turn const&) = delete;
  Turn& operator=(Turn const&) = delete;
  ~Turn() {
    if (taken_) turns_.end();
  }
  [[nodiscard]] bool mine() const noexcept { return turns_.mine(); }

 private:
  detail::Turns& turns_;
  bool taken_;
};

}  // namespace

/// Has host memory given back until the wish is granted: by those that may, the best first. Those that others work with
/// just now are waited for, but not for long, and without turns: whoever asks holds locks.
template <class AWish>
bool MemoryManager::State::spill_for(AWish& wish) {
  // Whom the limit that has refused is asked of: all that share it.
  constexpr std::array everywhere{Location::host, Location::pinned, Location::device, Location::unified};
  std::array const own{wish.pool.location()};
  auto const deadline = std::chrono::steady_clock::now() + patience_with_a_lock;
  std::string failure;
  std::size_t leased = 0, busy = 0;
  for (;;) {
    auto const before = residents.removals();
    auto const places =
        wish.is_refused_by_host() ? std::span<const Location>{everywhere} : std::span<const Location>{own};
    auto const survey = residents.survey(places);
    leased = survey.leased;
    busy = survey.busy;
    if (!wish.within_reach(survey.candidates, survey.busy)) {
      if (wish.granted_after_all(false)) return true;
      break;
    }
    bool given = false;
    for (auto const& candidate : survey.candidates) {
      auto const bytes = reclaim(*candidate.resident, candidate.location, failure);
      if (!bytes || *bytes == 0) continue;
      given = true;
      if (wish.granted()) return true;
    }
    if ((residents.removals() != before || wish.outdated()) && wish.granted()) return true;
    if (given) continue;
    if (survey.busy == 0 || std::chrono::steady_clock::now() >= deadline) break;
    waits.fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    if (wish.granted()) return true;
  }
  wish.facts.leased = leased;
  if (busy != 0 && std::chrono::steady_clock::now() >= deadline) {
    wish.facts.reason += fmt::format("; others were using {} and were waited for, {} ms at most", format_size(busy),
                                     patience_with_a_lock.count());
  }
  if (!failure.empty()) wish.facts.reason += fmt::format("; a resident could not be spilled: {}", failure);
  return false;
}

Allocation MemoryManager::State::host_memory_after_all(MemoryPool& from, std::size_t bytes, AcquireOptions const& how,
                                                       OutOfMemory::Facts refusal) {
  MakingRoom const making{this};
  Wish wish{from, bytes, how, bytes, {}, std::move(refusal)};
  if (detail::HostLimit::bounds(from.device())) wish.host = &host;
  if (trim_beside(from) != 0 && wish.granted()) return std::move(wish.block);
  // Host memory is where residents save to: it is asked back only if they may save to files.
  bool const may_spill = spill_files != nullptr && from.device().reaches_host_memory();
  if (may_spill && bytes <= wish.facts.limit + wish.beside() && spill_for(wish)) return std::move(wish.block);
  throw OutOfMemory(wish.all_facts());
}

Allocation MemoryManager::acquire(Device& device, Location location, std::size_t bytes, AcquireOptions const& options) {
  try {
    return acquire_uncounted(device, location, bytes, options);
  } catch (detail::Crowded const&) {
    throw;  // it is tried again in its turn
  } catch (OutOfMemory const&) {
    if (making_room != state_.get()) state_->refusals.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
}

Allocation MemoryManager::acquire_pinned_or_not(std::size_t bytes, AcquireOptions const& options) {
  auto& host = unimem::device("cpu");
  try {
    return acquire_uncounted(host, Location::pinned, bytes, options);
  } catch (OutOfMemory const&) {
    return acquire(host, Location::host, bytes, options);
  }
}

Allocation MemoryManager::acquire_uncounted(Device& device, Location location, std::size_t bytes,
                                            AcquireOptions const& options) {
  if (detail::Operation::innermost() != nullptr) return take(device, location, bytes, options);
  Allocation block;
  detail::operate([&] { block = take(device, location, bytes, options); });
  return block;
}

Allocation MemoryManager::take(Device& device, Location location, std::size_t bytes, AcquireOptions const& options) {
  auto& from = pool(device, location);
  if (bytes == 0) return from.acquire(0, options);
  detail::PressureLook const look{*state_->pressure, from};
  bool const of_the_device = location == Location::device || location == Location::unified;
  if (!of_the_device) {
    // Nearly always there is some, and nothing to be made ready for the case that there is none.
    try {
      return from.acquire(bytes, options);
    } catch (OutOfMemory const& refusal) {
      return state_->host_memory_after_all(from, bytes, options, refusal.facts());
    }
  }

  auto& operation = *detail::Operation::innermost();
  auto const together = operation.together(*this);
  Wish wish{from, bytes, options, std::max(bytes, operation.outstanding(*this))};
  if (detail::HostLimit::bounds(from.device())) wish.host = &state_->host;
  auto const removals = state_->residents.removals();
  auto& traffic = state_->traffic_on(device);
  auto& turns = traffic.turns;
  auto& taken = traffic.taken;
  auto const crowded = [&] { throw detail::Crowded(*this, device, std::move(wish.facts)); };
  auto const refuse = [&] {
    if (together > bytes) {
      wish.facts.reason += fmt::format("; the operands of this operation need {} together", format_size(together));
    }
    if (operation.insists()) wish.facts.reason += "; others were waited for, and none of them ended within ten seconds";
    throw OutOfMemory(wish.all_facts());
  };
  auto const most = std::min(wish.pool.max_bytes(), device.info().total_bytes);
  if (operation.waits() && !operation.insists() && turns.others()) {
    // Whoever has the turn has first choice; what is there besides is anybody's.
    auto const spoken_for = wish.pool.bytes_in_use() + turns.wanted();
    if (spoken_for > most || bytes > most - spoken_for) {
      wish.facts.requested = bytes;
      wish.facts.limit = most;
      wish.facts.reason = "another thread makes room";
      crowded();
    }
  }
  if (together > most) {
    wish.bytes = together;
    if (!wish.granted()) refuse();
    wish.block.release();  // the device has grown
    wish.bytes = bytes;
  }
  wish.operation = &operation;
  wish.taken = &taken;
  if (wish.granted()) return std::move(wish.block);
  if (bytes > wish.facts.limit) refuse();  // nobody loses a copy for what cannot be
  if (state_->trim_beside(wish.pool) != 0 && wish.granted()) return std::move(wish.block);

  MakingRoom const making{state_.get()};
  Turn const turn{turns};
  if (!turn.mine() && operation.waits() && !operation.insists()) crowded();
  if (turn.mine()) turns.want(wish.outstanding);
  bool const of_its_own = location == Location::device;  // what residents give goes to this very pool
  std::string failure;
  bool others_may = false, given = false;
  std::uint64_t times = 0;
  std::size_t all_taken = 0;
  if (of_its_own && wish.lies_in_pieces()) {
    try {
      // Within the device, which is many times faster than over its link and back.
      constexpr std::size_t worth = 8;
      if (defragment(device, {.max_copied_bytes = checked_multiply(worth, bytes, "bytes")}).blocks_moved != 0) {
        state_->defragmentations.fetch_add(1, std::memory_order_relaxed);
        if (wish.granted()) return std::move(wish.block);
      }
    } catch (std::exception const& error) {
      failure = error.what();  // what had been moved stays so, and the next rung may do
    }
  }
  for (bool hope = true; hope;) {
    hope = false;
    times = taken.times();
    all_taken = taken.bytes();
    auto const unknown = all_taken - operation.taken(taken);
    auto const survey = state_->residents.survey(device);
    wish.facts.leased = survey.leased;
    auto const others = survey.busy + unknown;
    others_may = others != 0 && wish.within_reach(survey.candidates, others);
    if (!wish.within_reach(survey.candidates)) break;
    for (auto const& candidate : survey.candidates) {
      auto const bytes_given = state_->reclaim(*candidate.resident, device, failure);
      others_may = others_may || bytes_given == 0U;  // somebody has begun to use it since
      if (!bytes_given || *bytes_given == 0) continue;
      if (!of_its_own) state_->trim_beside(wish.pool);
      if (wish.granted()) return std::move(wish.block);
      hope = given = true;
    }
  }
  // What was given may have come later than it was said: leases that were just leaving have it until then. And a
  // resident that has ended since the first look, or is about to be gone from the survey, has given its memory back.
  auto const leased = wish.facts.leased;
  if (wish.granted_after_all(given || state_->residents.removals() != removals)) return std::move(wish.block);
  wish.facts.leased = leased;
  // What other operations have taken since the last survey began may have been missing from it, and what the last try
  // was made for may have become theirs before it was made.
  others_may = others_may || taken.times() != times || taken.bytes() != all_taken;
  if (!failure.empty()) wish.facts.reason += fmt::format("; a resident could not be saved: {}", failure);
  if (others_may && operation.waits() && !operation.insists()) crowded();
  refuse();
  return {};
}

void MemoryManager::in_turn(Device& device, std::function<void()> const& work) {
  auto& turns = state_->traffic_on(device).turns;
  if (turns.mine()) return work();
  auto& operation = *detail::Operation::innermost();
  struct Held {
    detail::Operation& operation;
    explicit Held(detail::Operation& of) : operation(of) {}
    Held(Held const&) = delete;
    Held& operator=(Held const&) = delete;
    ~Held() { operation.end_turn(); }
  } const held{operation};
  std::chrono::steady_clock::time_point deadline;
  detail::WatchedWait watch{"waiting for others to make room"};
  for (std::chrono::microseconds pause{10};; pause = std::min(2 * pause, detail::longest_pause)) {
    state_->waits.fetch_add(1, std::memory_order_relaxed);
    if (!turns.mine()) {
      turns.take(detail::longest_wait) ? operation.hold(turns) : operation.insist();
      deadline = std::chrono::steady_clock::now() + detail::longest_wait;
    }
    if (std::chrono::steady_clock::now() >= deadline) operation.insist();
    try {
      return work();
    } catch (detail::Crowded const& crowded) {
      if (&crowded.device() != &device || crowded.manager().state_.get() != state_.get()) throw;
    }
    operation.let_go();
    watch.look();
    // Whoever is in the way holds nothing that he could signal: operations are not made dearer for that.
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace unimem
