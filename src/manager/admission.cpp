#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "manager/admission.hpp"
#include "manager/manager_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// How a manager comes by memory when there is none: the ladder of MemoryManager::acquire_on_device, each rung of which
// is followed by another try, and the turns in which threads climb it.

namespace unimem {
namespace {

/// Host memory is often taken with a buffer's lock held, which those that are waited for may be waiting for in turn.
constexpr std::chrono::milliseconds patience_with_a_lock{200};

/// The manager that makes room for a request of this thread: what its residents ask of it meanwhile is part of that
/// request, and is not counted as a refusal by itself.
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

/// One request, tried as often as memory may have come back.
struct AllocationRequest {
  MemoryPool& pool;
  std::size_t bytes;
  AcquireOptions const& options;
  std::size_t outstanding;  ///< what its operation has yet to take, this included
  Allocation block{};
  OutOfMemory::Facts facts{};  ///< of the last refusal
  detail::AccessContext* context = nullptr;
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
    if (taken != nullptr) context->count_taken(*taken, bytes);
    return true;
  }

  /// Whether memory has come back since it was refused without having been asked for: of a buffer that ended or was
  /// freed meanwhile, which nothing else need tell.
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
  /// bytes besides.
  [[nodiscard]] bool within_reach(std::vector<detail::Residents::Candidate> const& candidates,
                                  std::size_t others = 0) const noexcept {
    std::size_t most = others;
    for (auto const& candidate : candidates) most += detail::largest_block_of(candidate.reclaimable.bytes);
    // What residents give goes to the device's own pool first: of another's limit it says nothing.
    if (pool.location() == Location::unified) return most != 0;
    // What refused may be a container, which counts what is in no pool.
    bool const of_the_host = pool.location() != Location::device;
    if (of_the_host && facts.limit != pool.max_bytes() && !is_refused_by_host()) return most != 0;
    auto const limit = facts.limit + beside(), live = facts.live + beside();
    auto const pinned = live > most ? live - most : 0;
    return pinned <= limit && outstanding <= limit - pinned;
  }
};

bool is_of_the_device(Location location) noexcept {
  return location == Location::device || location == Location::unified;
}

/// The turn to make room, for as long as this lives, unless the thread has it anyway or another thread does.
class Turn {
 public:
  explicit Turn(detail::AdmissionQueue& turns) : turns_(turns), taken_(!turns.mine() && turns.try_take()) {}
  Turn(Turn const&) = delete;
  Turn& operator=(Turn const&) = delete;
  ~Turn() {
    if (taken_) turns_.end();
  }
  [[nodiscard]] bool mine() const noexcept { return turns_.mine(); }

 private:
  detail::AdmissionQueue& turns_;
  bool taken_;
};

}  // namespace

/// Has host memory given back until the request is granted: by residents that may, the best first. Those that others
/// work with just now are waited for, but not for long, and without turns: the caller holds locks.
template <class Request>
bool MemoryManager::State::spill_for(Request& request) {
  // All that share the limit that has refused.
  constexpr std::array everywhere{Location::host, Location::pinned, Location::device, Location::unified};
  std::array const own{request.pool.location()};
  auto const deadline = std::chrono::steady_clock::now() + patience_with_a_lock;
  std::string failure;
  std::size_t leased = 0, busy = 0;
  for (;;) {
    auto const before = residents.removals();
    auto const places =
        request.is_refused_by_host() ? std::span<const Location>{everywhere} : std::span<const Location>{own};
    auto const survey = residents.survey(places);
    leased = survey.leased;
    busy = survey.busy;
    if (!request.within_reach(survey.candidates, survey.busy_blocks)) {
      if (request.granted_after_all(false)) return true;
      break;
    }
    bool given = false;
    for (auto const& candidate : survey.candidates) {
      auto const bytes = reclaim(*candidate.resident, candidate.location, failure);
      if (!bytes || *bytes == 0) continue;
      given = true;
      if (request.granted()) return true;
    }
    if ((residents.removals() != before || request.outdated()) && request.granted()) return true;
    if (given) continue;
    if (survey.busy == 0 || std::chrono::steady_clock::now() >= deadline) break;
    waits.fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    if (request.granted()) return true;
  }
  request.facts.leased = leased;
  if (busy != 0 && std::chrono::steady_clock::now() >= deadline) {
    request.facts.reason += fmt::format("; others were using {} and were waited for, {} ms at most", format_size(busy),
                                        patience_with_a_lock.count());
  }
  if (!failure.empty()) request.facts.reason += fmt::format("; a resident could not be spilled: {}", failure);
  return false;
}

Allocation MemoryManager::State::host_memory_after_all(MemoryPool& from, std::size_t bytes, AcquireOptions const& how,
                                                       OutOfMemory::Facts refusal) {
  MakingRoom const making{this};
  AllocationRequest request{from, bytes, how, bytes, {}, std::move(refusal)};
  if (detail::HostLimit::bounds(from.device())) request.host = &host;
  if (trim_beside(from) != 0 && request.granted()) return std::move(request.block);
  // Host memory is where residents save to: it is asked back only if they may save to files.
  bool const may_spill = spill_files != nullptr && from.device().reaches_host_memory();
  if (may_spill && bytes <= request.facts.limit + request.beside() && spill_for(request))
    return std::move(request.block);
  throw OutOfMemory(request.all_facts());
}

/// Calls `acquire`, and counts it as a refusal of this manager's if it is one.
template <class Acquire>
auto MemoryManager::State::counting_refusals(Acquire const& acquire) {
  try {
    return acquire();
  } catch (OutOfMemory const&) {
    if (making_room != this) refusals.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
}

Allocation MemoryManager::acquire(Device& device, Location location, std::size_t bytes, AcquireOptions const& options) {
  return state_->counting_refusals([&] {
    if (!is_of_the_device(location) || bytes == 0) return acquire_on_host(device, location, bytes, options);
    std::optional<Allocation> block;
    detail::run_admitted([&](detail::AccessContext& context) {
      block = acquire_on_device(context, device, location, bytes, options);
      return block.has_value();
    });
    return *std::move(block);
  });
}

std::optional<Allocation> MemoryManager::acquire(detail::AccessContext& context, Device& device, Location location,
                                                 std::size_t bytes, AcquireOptions const& options) {
  return state_->counting_refusals([&] { return acquire_on_device(context, device, location, bytes, options); });
}

Allocation MemoryManager::acquire_pinned_or_not(std::size_t bytes, AcquireOptions const& options) {
  auto& host = unimem::device("cpu");
  try {
    return acquire_on_host(host, Location::pinned, bytes, options);
  } catch (OutOfMemory const&) {
    return acquire(host, Location::host, bytes, options);
  }
}

Allocation MemoryManager::acquire_on_host(Device& device, Location location, std::size_t bytes,
                                          AcquireOptions const& options) {
  auto& from = pool(device, location);
  if (bytes == 0) return from.acquire(0, options);
  detail::PressureLook const look{*state_->pressure, from};
  // Nearly always there is some, and nothing to be made ready for the case that there is none.
  try {
    return from.acquire(bytes, options);
  } catch (OutOfMemory const& refusal) {
    return state_->host_memory_after_all(from, bytes, options, refusal.facts());
  }
}

std::optional<Allocation> MemoryManager::acquire_on_device(detail::AccessContext& context, Device& device,
                                                           Location location, std::size_t bytes,
                                                           AcquireOptions const& options) {
  auto& from = pool(device, location);
  detail::PressureLook const look{*state_->pressure, from};
  auto const together = context.together(*this);
  AllocationRequest request{from, bytes, options, std::max(bytes, context.outstanding(*this))};
  if (detail::HostLimit::bounds(from.device())) request.host = &state_->host;
  auto const removals = state_->residents.removals();
  auto& record = state_->record_of(device);
  auto& turns = record.turns;
  auto& taken = record.taken;
  auto const must_wait = [&] {
    context.wait_for(*this, device);
    return std::nullopt;
  };
  auto const refuse = [&] {
    if (together > bytes) {
      request.facts.reason += fmt::format("; the operands of this operation need {} together", format_size(together));
    }
    if (context.insists())
      request.facts.reason += "; others were waited for, and none of them ended within ten seconds";
    throw OutOfMemory(request.all_facts());
  };
  auto const most = std::min(request.pool.max_bytes(), device.info().total_bytes);
  if (context.waits() && !context.insists() && turns.others()) {
    // The thread that has the turn has first choice; others may have what there is besides.
    auto const spoken_for = request.pool.bytes_in_use() + turns.wanted();
    if (spoken_for > most || bytes > most - spoken_for) return must_wait();
  }
  if (together > most) {
    request.bytes = together;
    if (!request.granted()) refuse();
    request.block.release();  // the device has grown
    request.bytes = bytes;
  }
  request.context = &context;
  request.taken = &taken;
  if (request.granted()) return std::move(request.block);
  if (bytes > request.facts.limit) refuse();  // no copy is evicted for what cannot be
  if (state_->trim_beside(request.pool) != 0 && request.granted()) return std::move(request.block);

  MakingRoom const making{state_.get()};
  Turn const turn{turns};
  if (!turn.mine() && context.waits() && !context.insists()) return must_wait();
  if (turn.mine()) turns.want(request.outstanding);
  bool const of_its_own = location == Location::device;  // what residents give goes to this very pool
  std::string failure;
  bool others_may = false, given = false;
  std::uint64_t times = 0;
  std::size_t all_taken = 0;
  if (of_its_own && request.lies_in_pieces()) {
    try {
      // Within the device, which is many times faster than over its link and back.
      constexpr std::size_t worth = 8;
      if (defragment(device, {.max_copied_bytes = checked_multiply(worth, bytes, "bytes")}).blocks_moved != 0) {
        state_->defragmentations.fetch_add(1, std::memory_order_relaxed);
        if (request.granted()) return std::move(request.block);
      }
    } catch (std::exception const& error) {
      failure = error.what();  // what had been moved stays so, and the next rung may do
    }
  }
  for (bool hope = true; hope;) {
    hope = false;
    times = taken.times();
    all_taken = taken.bytes();
    auto const unknown = all_taken - context.taken(taken);
    auto const survey = state_->residents.survey(device);
    request.facts.leased = survey.leased;
    auto const others = survey.busy_blocks + detail::largest_block_of(unknown);
    others_may = others != 0 && request.within_reach(survey.candidates, others);
    if (!request.within_reach(survey.candidates)) break;
    for (auto const& candidate : survey.candidates) {
      auto const bytes_given = state_->reclaim(*candidate.resident, device, failure);
      others_may = others_may || bytes_given == 0U;  // another thread has begun to use it since
      if (!bytes_given || *bytes_given == 0) continue;
      if (!of_its_own) state_->trim_beside(request.pool);
      if (request.granted()) return std::move(request.block);
      hope = given = true;
    }
  }
  // What was given may have come later than it was said: leases that were just leaving have it until then. And a
  // resident that has ended since the first look, or is about to be gone from the survey, has given its memory back.
  auto const leased = request.facts.leased;
  if (request.granted_after_all(given || state_->residents.removals() != removals)) return std::move(request.block);
  request.facts.leased = leased;
  // What other operations have taken since the last survey began may have been missing from it, and what the last try
  // was made for may have become theirs before it was made.
  others_may = others_may || taken.times() != times || taken.bytes() != all_taken;
  if (!failure.empty()) request.facts.reason += fmt::format("; a resident could not be saved: {}", failure);
  if (others_may && context.waits() && !context.insists()) return must_wait();
  refuse();
  return std::nullopt;
}

bool MemoryManager::run_in_turn(detail::AccessContext& context, Device& device,
                                std::function<bool(detail::AccessContext&)> const& work) {
  auto& turns = state_->record_of(device).turns;
  if (turns.mine()) return work(context);
  struct Held {
    detail::AccessContext& context;
    explicit Held(detail::AccessContext& of) : context(of) {}
    Held(Held const&) = delete;
    Held& operator=(Held const&) = delete;
    ~Held() { context.end_turn(); }
  } const held{context};
  std::chrono::steady_clock::time_point deadline;
  detail::WatchedWait watch{"waiting for others to make room"};
  for (std::chrono::microseconds pause{10};; pause = std::min(2 * pause, detail::longest_pause)) {
    state_->waits.fetch_add(1, std::memory_order_relaxed);
    if (!turns.mine()) {
      turns.take(detail::longest_wait) ? context.hold(turns) : context.insist();
      deadline = std::chrono::steady_clock::now() + detail::longest_wait;
    }
    if (std::chrono::steady_clock::now() >= deadline) context.insist();
    if (work(context)) return true;
    auto const missing = context.must_wait();
    if (missing.device != &device || missing.manager->state_.get() != state_.get()) return false;
    context.let_go();
    watch.look();
    // What others hold sends no signal when it is released: operations are not made dearer for that.
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace unimem
