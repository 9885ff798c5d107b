#include "manager/host_admission.hpp"

#include <unimem/core/size.hpp>
#include <unimem/device/device.hpp>

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

namespace unimem::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// For those that others work with.
constexpr std::chrono::milliseconds patience{200};

}  // namespace

HostAdmission::HostAdmission(MemoryManager::State& state, AccessContext& context, MemoryPool& from, std::size_t bytes,
                             AcquireOptions const& options, std::optional<OutOfMemory::Facts> refusal)
    : state_(state),
      context_(context),
      refused_(refusal.has_value()),
      request_{from, bytes, options, bytes, {}, std::move(refusal).value_or(OutOfMemory::Facts{})} {
  if (HostLimit::bounds(from.device())) request_.host = &state.host;
}

std::optional<Allocation> HostAdmission::run() {
  if (context_.releases_for_room()) {
    auto& pool = request_.pool;
    RoomRequest room{&state_.self, &pool.device(), pool.location(), request_.bytes, request_.options};
    if (refused_) room.refusal = std::move(request_.facts);
    context_.room().request(std::move(room));
    return std::nullopt;
  }
  if (!refused_ && request_.granted()) return std::move(request_.block);
  if (state_.trim_beside(request_.pool) != 0 && request_.granted()) return std::move(request_.block);
  if (may_evict() && granted_by_evicting()) return std::move(request_.block);
  request_.refuse();
}

bool HostAdmission::may_evict() const {
  bool const any = state_.spill_files != nullptr || state_.files->any.load(std::memory_order_relaxed);
  return any && request_.pool.device().reaches_host_memory() &&
         request_.bytes <= request_.facts.limit + request_.beside();
}

Residents::Survey HostAdmission::survey() const {
  auto* const device = &request_.pool.device();
  std::array const own{MemoryPlace{device, request_.pool.location()}};
  if (!request_.is_refused_by_host()) return state_.residents.survey(own);
  // All that share the limit that has refused.
  std::array const everywhere{MemoryPlace{device, Location::host}, MemoryPlace{device, Location::pinned},
                              MemoryPlace{device, Location::device}, MemoryPlace{device, Location::unified}};
  return state_.residents.survey(everywhere);
}

HostAdmission::Given HostAdmission::evict(Residents::Survey const& survey) {
  auto given = Given::nothing;
  for (auto const& candidate : survey.candidates) {
    auto const bytes = state_.evictor.evict(candidate, failure_);
    if (bytes == 0U && given == Given::nothing) given = Given::in_use;  // another thread has begun to use it since
    if (!bytes || *bytes == 0) continue;
    given = Given::some;
    if (request_.granted()) return Given::enough;
  }
  return given;
}

bool HostAdmission::granted_by_evicting() {
  auto const deadline = Clock::now() + patience;
  Residents::Survey seen;
  for (;;) {
    auto const before = state_.residents.removals();
    seen = survey();
    if (!request_.within_reach(seen.candidates, seen.busy_blocks)) {
      if (request_.granted_after_all(false)) return true;
      break;
    }
    auto const given = evict(seen);
    if (given == Given::enough) return true;
    if ((state_.residents.removals() != before || request_.outdated()) && request_.granted()) return true;
    if (given == Given::some) continue;
    bool const in_use = seen.busy != 0 || given == Given::in_use;
    if (!in_use || Clock::now() >= deadline) break;
    state_.waits.fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    if (request_.granted()) return true;
  }
  request_.facts.leased = seen.leased;
  auto& reason = request_.facts.reason;
  if (seen.busy != 0 && Clock::now() >= deadline) {
    reason += fmt::format("; others were using {} and were waited for, {} ms at most", format_size(seen.busy),
                          patience.count());
  }
  if (!failure_.empty()) reason += fmt::format("; a resident could not be spilled: {}", failure_);
  return false;
}

}  // namespace unimem::detail
