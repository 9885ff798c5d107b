#include "manager/admission.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "manager/device_admission.hpp"
#include "manager/host_admission.hpp"
#include "manager/manager_state.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
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
  return state().counting_refusals(false, [&] {
    if (!is_of_the_device(location) || bytes == 0) return acquire_on_host(device, location, bytes, options);
    std::optional<Allocation> block;
    detail::run_admitted([&](detail::AccessContext& context) {
      block = detail::DeviceAdmission(state(), context, device, location, bytes, options).run();
      return block.has_value();
    });
    return *std::move(block);
  });
}

std::optional<Allocation> MemoryManager::acquire(detail::AccessContext& context, Device& device, Location location,
                                                 std::size_t bytes, AcquireOptions const& options) {
  return state().counting_refusals(context.evicts(), [&]() -> std::optional<Allocation> {
    if (!is_of_the_device(location) || bytes == 0) return acquire_on_host(device, location, bytes, options);
    return detail::DeviceAdmission(state(), context, device, location, bytes, options).run();
  });
}

Allocation MemoryManager::acquire_pinned_or_not(detail::AccessContext& context, std::size_t bytes,
                                                AcquireOptions const& options) {
  auto& host = unimem::device("cpu");
  try {
    return acquire_on_host(host, Location::pinned, bytes, options);
  } catch (OutOfMemory const&) {
    return *acquire(context, host, Location::host, bytes, options);
  }
}

Allocation MemoryManager::acquire_on_host(Device& device, Location location, std::size_t bytes,
                                          AcquireOptions const& options) {
  auto& from = pool(device, location);
  if (bytes == 0) return from.acquire(0, options);
  detail::PressureLook const look{*state().pressure, from};
  // Nearly always there is some, and nothing to be made ready for the case that there is none.
  try {
    return from.acquire(bytes, options);
  } catch (OutOfMemory const& refusal) {
    return detail::HostAdmission(state(), from, bytes, options, refusal.facts()).run();
  }
}

bool MemoryManager::run_in_turn(detail::AccessContext& context, Device& device,
                                std::function<bool(detail::AccessContext&)> const& work) {
  auto& turns = state().record_of(device).turns;
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
    state().waits.fetch_add(1, std::memory_order_relaxed);
    if (!turns.mine()) {
      turns.take(detail::longest_wait) ? context.hold(turns) : context.insist();
      deadline = std::chrono::steady_clock::now() + detail::longest_wait;
    }
    if (std::chrono::steady_clock::now() >= deadline) context.insist();
    if (work(context)) return true;
    while (context.awaits_work()) {
      context.end_turn();  // others may make room meanwhile
      context.await_work();
      if (work(context)) return true;
    }
    auto const& missing = context.must_wait();
    if (missing.device != &device || missing.manager->state_.get() != state_.get()) return false;
    context.let_go();
    watch.look();
    // What others hold sends no signal when it is released: operations are not made dearer for that.
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace unimem
