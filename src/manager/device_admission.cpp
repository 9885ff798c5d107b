#include "manager/device_admission.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/device.hpp>

#include "manager/pressure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace unimem::detail {
namespace {

/// The turn to make room, for as long as this lives, unless the thread has it anyway or another thread does.
class Turn {
 public:
  explicit Turn(AdmissionQueue& turns) : turns_(turns), taken_(!turns.mine() && turns.try_take()) {}
  Turn(Turn const&) = delete;
  Turn& operator=(Turn const&) = delete;
  ~Turn() {
    if (taken_) turns_.end();
  }
  [[nodiscard]] bool mine() const noexcept { return turns_.mine(); }

 private:
  AdmissionQueue& turns_;
  bool taken_;
};

}  // namespace

DeviceAdmission::DeviceAdmission(MemoryManager::State& state, AccessContext& context, Device& device, Location location,
                                 std::size_t bytes, AcquireOptions const& options)
    : state_(state),
      context_(context),
      device_(device),
      record_(state.record_of(device)),
      bytes_(bytes),
      together_(context.demand().together(state.self)),
      removals_(state.residents.removals()),
      request_{state.self.pool(device, location), bytes, options,
               std::max(bytes, context.demand().outstanding(state.self))} {
  if (HostLimit::bounds(device)) request_.host = &state.host;
}

std::optional<Allocation> DeviceAdmission::run() {
  PressureLook const look{*state_.pressure, request_.pool};
  if (auto made = context_.room().take(request_.pool, bytes_)) return made;
  if (may_wait() && others_come_first()) return must_wait();
  if (!context_.releases_for_room()) return make_room(std::nullopt);
  if (operands_exceed_device()) return needs_room(std::nullopt);
  count_as_taken();
  auto const granted = request_.granted_without_waiting();
  if (!granted) return needs_room(std::nullopt);
  if (*granted) return std::move(request_.block);
  if (request_.bytes > request_.facts.limit) refuse();  // no copy is evicted for what cannot be
  return needs_room(std::move(request_.facts));
}

std::optional<Allocation> DeviceAdmission::make_room(std::optional<OutOfMemory::Facts> refusal) {
  if (!refusal && granted_from_free_memory()) return std::move(request_.block);
  if (refusal) request_.facts = *std::move(refusal);
  count_as_taken();
  if (granted_from_other_caches()) return std::move(request_.block);
  Turn const turn{record_.turns};
  if (!turn.mine() && may_wait()) return must_wait();
  if (turn.mine()) record_.turns.want(request_.outstanding);
  if (granted_by_defragmenting() || granted_by_evicting() || granted_late()) return std::move(request_.block);
  if (others_may_give_ && may_wait()) return must_wait();
  refuse();
}

bool DeviceAdmission::granted_from_free_memory() {
  if (operands_exceed_device() && !operands_fit_together()) refuse();
  count_as_taken();
  if (request_.granted()) return true;
  if (request_.bytes > request_.facts.limit) refuse();
  return false;
}

void DeviceAdmission::count_as_taken() noexcept {
  request_.context = &context_;
  request_.taken = &record_.taken;
}

std::optional<Allocation> DeviceAdmission::needs_room(std::optional<OutOfMemory::Facts> refusal) {
  context_.room().request(
      {&state_.self, &device_, request_.pool.location(), bytes_, request_.options, std::move(refusal)});
  return std::nullopt;
}

bool DeviceAdmission::others_come_first() const {
  if (!record_.turns.others()) return false;
  auto const most = std::min(request_.pool.max_bytes(), device_.info().total_bytes);
  auto const spoken_for = request_.pool.bytes_in_use() + record_.turns.wanted();
  return spoken_for > most || request_.bytes > most - spoken_for;
}

bool DeviceAdmission::operands_exceed_device() const {
  return together_ > std::min(request_.pool.max_bytes(), device_.info().total_bytes);
}

bool DeviceAdmission::operands_fit_together() {
  request_.bytes = together_;
  bool const fit = request_.granted();
  request_.block.release();  // the device has grown
  request_.bytes = bytes_;
  return fit;
}

bool DeviceAdmission::granted_from_other_caches() {
  return state_.trim_beside(request_.pool) != 0 && request_.granted();
}

bool DeviceAdmission::granted_by_defragmenting() {
  if (request_.pool.location() != Location::device || !request_.lies_in_pieces()) return false;
  constexpr std::size_t worth = 8;
  try {
    auto const moved =
        state_.self.defragment(device_, {.max_copied_bytes = checked_multiply(worth, request_.bytes, "bytes")});
    if (moved.blocks_moved == 0) return false;
    state_.defragmentations.fetch_add(1, std::memory_order_relaxed);
    return request_.granted();
  } catch (std::exception const& error) {
    failure_ = error.what();  // what had been moved stays so, and the next rung may do
    return false;
  }
}

bool DeviceAdmission::survey() {
  MemoryPlace const place{&device_, Location::device};
  taken_times_ = record_.taken.times();
  taken_bytes_ = record_.taken.bytes();
  auto const unknown = taken_bytes_ - context_.taken().of(record_.taken);
  // What reaches the host's memory has none of its own that residents could give.
  survey_ = device_.reaches_host_memory() ? Residents::Survey{} : state_.residents.survey({&place, 1});
  request_.facts.leased = survey_.leased;
  auto const others = survey_.busy_blocks + largest_block_of(unknown);
  others_may_give_ = others != 0 && request_.within_reach(survey_.candidates, others);
  return request_.within_reach(survey_.candidates);
}

bool DeviceAdmission::granted_by_evicting() {
  for (bool hope = true; hope && survey();) {
    hope = false;
    for (auto const& candidate : survey_.candidates) {
      auto const bytes = state_.evictor.evict(candidate, failure_);
      others_may_give_ = others_may_give_ || bytes == 0U;  // another thread has begun to use it since
      if (!bytes || *bytes == 0) continue;
      // What residents give goes to the device's own pool.
      if (request_.pool.location() != Location::device) state_.trim_beside(request_.pool);
      if (request_.granted()) return true;
      hope = given_ = true;
      if (candidate.evictable.more != 0) break;  // what it offers next is to be compared with what others offer
    }
  }
  return false;
}

bool DeviceAdmission::granted_late() {
  // Leases that were just leaving have what was given until then. And a resident that has ended since the first look,
  // or is about to be gone from the survey, has given its memory back.
  auto const leased = request_.facts.leased;
  if (request_.granted_after_all(given_ || state_.residents.removals() != removals_)) return true;
  request_.facts.leased = leased;
  // What other operations have taken since the last survey began may have been missing from it, and what the last try
  // was made for may have become theirs before it was made.
  auto const& taken = record_.taken;
  others_may_give_ = others_may_give_ || taken.times() != taken_times_ || taken.bytes() != taken_bytes_;
  return false;
}

std::optional<Allocation> DeviceAdmission::must_wait() noexcept {
  context_.wait_for(state_.self, device_);
  return std::nullopt;
}

void DeviceAdmission::refuse() {
  auto& reason = request_.facts.reason;
  if (!failure_.empty()) reason += fmt::format("; a resident could not be saved: {}", failure_);
  if (together_ > bytes_) {
    reason += fmt::format("; the operands of this operation need {} together", format_size(together_));
  }
  if (context_.insists()) reason += "; others were waited for, and none of them ended within ten seconds";
  request_.refuse();
}

}  // namespace unimem::detail
