#include "manager/admission.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "device/watched_wait.hpp"
#include "manager/admission_queue.hpp"
#include "manager/device_admission.hpp"
#include "manager/host_admission.hpp"
#include "manager/manager_state.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>

// How memory is asked for: by users, who wait for it, and by operations, which are told when they have to wait.

namespace unimem {
namespace {

bool is_of_the_device(Location location) noexcept {
  return location == Location::device || location == Location::unified;
}

}  // namespace

/// Calls `acquire`, and counts it as a refusal of this manager's if it is one: but not what an eviction asks for, which
/// is part of the request that it makes room for.
template <class Acquire>
auto MemoryManager::State::counting_refusals(bool evicts, Acquire const& acquire) {
  try {
    return acquire();
  } catch (OutOfMemory const&) {
    if (!evicts) refusals.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
}

Allocation MemoryManager::acquire(Device& device, Location location, std::size_t bytes, AcquireOptions const& options) {
  std::optional<Allocation> block;
  detail::run_admitted(detail::operands(), [&](detail::AccessContext& context) {
    block = acquire(context, device, location, bytes, options);
    return block.has_value();
  });
  return *std::move(block);
}

std::optional<Allocation> MemoryManager::acquire(detail::AccessContext& context, Device& device, Location location,
                                                 std::size_t bytes, AcquireOptions const& options) {
  return state().counting_refusals(context.evicts(), [&]() -> std::optional<Allocation> {
    if (!is_of_the_device(location) || bytes == 0) return acquire_on_host(context, device, location, bytes, options);
    return detail::DeviceAdmission(state(), context, device, location, bytes, options).run();
  });
}

std::optional<Allocation> MemoryManager::make_room(detail::AccessContext& context, detail::RoomRequest const& wanted) {
  auto const& [manager, device, location, bytes, options, refusal] = wanted;
  if (is_of_the_device(location)) {
    return detail::DeviceAdmission(state(), context, *device, location, bytes, options).make_room(refusal);
  }
  return detail::HostAdmission(state(), context, pool(*device, location), bytes, options, refusal).run();
}

std::optional<Allocation> MemoryManager::acquire_pinned_or_not(detail::AccessContext& context, std::size_t bytes,
                                                               AcquireOptions const& options) {
  auto& host = unimem::device("cpu");
  try {
    return acquire_on_host(context, host, Location::pinned, bytes, options);
  } catch (OutOfMemory const&) {
    return acquire(context, host, Location::host, bytes, options);
  }
}

std::optional<Allocation> MemoryManager::acquire_on_host(detail::AccessContext& context, Device& device,
                                                         Location location, std::size_t bytes,
                                                         AcquireOptions const& options) {
  auto& from = pool(device, location);
  if (bytes == 0) return from.acquire(0, options);
  detail::PressureLook const look{*state().pressure, from};
  if (auto made = context.room().take(from, bytes)) return made;
  // Nearly always there is some, and nothing to be made ready for the case that there is none.
  std::optional<OutOfMemory::Facts> refusal;
  try {
    if (!context.releases_for_room()) return from.acquire(bytes, options);
    if (auto block = from.acquire_without_waiting(bytes, options)) return block;
  } catch (OutOfMemory const& refused) {
    refusal = refused.facts();
  }
  return detail::HostAdmission(state(), context, from, bytes, options, std::move(refusal)).run();
}

bool MemoryManager::begin_use(Resident& resident, ByteRange part) {
  return state().residents.begin_use(resident, part);
}

void MemoryManager::end_use(Resident& resident) noexcept {
  state_->residents.end_use(resident);
}

detail::AdmissionQueue& MemoryManager::queue_to_wait_in(Device& device) {
  state().waits.fetch_add(1, std::memory_order_relaxed);
  return state().record_of(device).turns;
}

namespace detail {

void OperandsInUse::add(MemoryManager& manager, Resident& operand, ByteRange part) {
  Use const use{&manager, &operand, part};
  if (std::ranges::find(operands_, use) != operands_.end()) return;
  operands_.reserve(operands_.size() + 1);
  if (manager.begin_use(operand, part)) operands_.push_back(use);
}

void OperandsInUse::end() noexcept {
  for (auto const& use : operands_) use.manager->end_use(*use.operand);
  operands_.clear();
}

namespace {

/// Where an operation waits for others that are in its way: for its turn to make room, and in that turn until they have
/// moved on.
class WaitForOthers {
 public:
  /// An operation that has waited for ten seconds while none of the others ended insists. Throws WaitInterrupted in a
  /// watched thread.
  void wait(AccessContext& context) {
    context.try_again();
    auto const& missing = context.must_wait();
    auto& turns = missing.manager->queue_to_wait_in(*missing.device);
    if (context.turn() == &turns) {
      pause();
    } else {
      if (context.turn() != nullptr) pause();  // memory of another device or manager is missing
      context.end_turn();
      if (insists_at_ == Clock::time_point{}) insists_at_ = Clock::now() + longest;
      if (Clock::now() >= insists_at_) context.insist();
      turns.take(longest) ? context.hold(turns) : context.insist();
      turn_is_over_ = Clock::now() + longest;
    }
    if (Clock::now() >= turn_is_over_) context.insist();
  }

 private:
  using Clock = std::chrono::steady_clock;
  /// Operations end, and turns with them; what does not within this is not waited for.
  static constexpr std::chrono::seconds longest{10};
  static constexpr std::chrono::microseconds longest_pause{1'000};

  /// What others hold sends no signal when it is released: operations are not made dearer for that.
  void pause() {
    watch_.look();
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, longest_pause);
  }

  WatchedWait watch_{"waiting for others to make room"};
  std::chrono::microseconds pause_{10};
  Clock::time_point insists_at_{};    ///< from turn to turn; known when the first is waited for
  Clock::time_point turn_is_over_{};  ///< of the turn it has
};

}  // namespace

void run_again(AccessContext& context, ListOperands const& operands, Operation const& work) {
  WaitForOthers others;
  OperandsInUse in_use;
  do {
    if (context.awaits_work()) {
      in_use.end();
      context.end_turn();  // others may make room meanwhile
      context.await_work();
      continue;
    }
    if (context.room().is_requested()) {
      operands(in_use);  // again: it may be known to its manager only now
      if (context.make_room()) continue;
    }
    in_use.end();
    others.wait(context);
  } while (!work(context));
}

}  // namespace detail

}  // namespace unimem
