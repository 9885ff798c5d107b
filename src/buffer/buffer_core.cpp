#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/wait_watch.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_lock.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/places.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/shared_access.hpp"
#include "buffer/transfer_engine.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
namespace unimem {

using detail::AccessContext;
using detail::BufferLook;
using detail::NextUse;
using detail::Reconciler;
using detail::Replica;
using detail::ReplicaAllocator;
using detail::SharedAccess;

std::string_view BufferCore::name() const noexcept {
  return parts_->terms.name.view();
}

Device& BufferCore::find_default_device() const {
  BufferLook const look{parts_->lock, parts_->terms};
  auto& device = parts_->replicas.default_device();
  default_device_.store(&device, std::memory_order_release);
  return device;
}

std::shared_ptr<detail::WrittenMap> const& BufferCore::written_map() const noexcept {
  return parts_->watch.written_map();
}

std::shared_ptr<detail::StaleViews> BufferCore::stale_views() const noexcept {
  return parts_->watch.stale_views();
}

std::uint64_t BufferCore::id() const noexcept {
  return parts_->terms.id;
}

MemoryManager& BufferCore::manager() const noexcept {
  return *parts_->terms.manager;
}

BufferOptions const& BufferCore::options() const noexcept {
  return parts_->terms.options;
}

void BufferCore::require_made_here(std::string_view what) const {
  parts_->made.require(what);
}

bool BufferCore::is_pinned() const noexcept {
  return parts_->pinned.load(std::memory_order_relaxed);
}

Location BufferCore::location() const {
  BufferLook const look{parts_->lock, parts_->terms};
  auto const& parts = *parts_;
  bool const refused = parts.replicas.host() && !parts.pinned.load(std::memory_order_relaxed);
  auto const asked = parts.terms.options.location;
  return asked == Location::pinned && refused ? Location::host : asked;
}

bool BufferCore::is_allocated() const {
  BufferLook const look{parts_->lock, parts_->terms};
  return parts_->replicas.has_memory();
}

bool BufferCore::valid_on_host() const {
  BufferLook const look{parts_->lock, parts_->terms};
  detail::SharedAccess(*parts_).note_others();
  return parts_->replicas.holds_on_host_side(parts_->replicas.whole());
}

bool BufferCore::valid_on(Device& device) const {
  BufferLook const look{parts_->lock, parts_->terms};
  detail::SharedAccess(*parts_).note_others();
  auto const& replicas = parts_->replicas;
  auto const place = replicas.places.find(device);
  if (place && replicas.holds(*place, replicas.whole())) return true;
  return replicas.coherence.has_data() && replicas.places.has_windows() &&
         replicas.held_on(device, replicas.whole()).contains(replicas.whole());
}

std::size_t BufferCore::missing_on(Device& device, ByteRange range) const {
  BufferLook const look{parts_->lock, parts_->terms};
  detail::SharedAccess(*parts_).note_others();
  parts_->check_range(range);
  auto const& coherence = parts_->replicas.coherence;
  if (!coherence.has_data()) return 0;
  ByteRanges missing{range};
  missing.remove(parts_->replicas.held_on(device, range));
  if (parts_->replicas.places.shares(device)) missing.remove(coherence.valid(host_place));
  return missing.size_bytes();
}

std::vector<Device*> BufferCore::devices_with_memory() const {
  BufferLook const look{parts_->lock, parts_->terms};
  std::vector<Device*> found;
  auto const& replicas = parts_->replicas;
  for (Place place = host_place + 1; place < replicas.places.count(); ++place) {
    if (replicas.places.is_file(place) || !replicas.coherence.has_storage(place)) continue;
    auto* const device = replicas.places[place].device;
    if (std::ranges::find(found, device) == found.end()) found.push_back(device);
  }
  return found;
}

BufferState BufferCore::state_by_looking() const noexcept {
  if (parts_->lock.is_lost()) return published_.state();
  try {
    BufferState state{};
    detail::run_admitted(detail::operands(), [&](detail::AccessContext& context) {
      // Asking changes what is known, and nothing else that can be seen.
      Guard parts(*parts_, Guard::Look{});
      if (!Reconciler(*parts).may_record(context)) return false;
      try {
        Reconciler(*parts).collect_host_writes(true, false);
      } catch (std::exception const& failure) {
        // The next access finds it out again, and can raise it.
        log(LogLevel::debug, failure.what());
      }
      state = parts->replicas.coherence.state();
      return true;
    });
    return state;
  } catch (std::exception const&) {  // in a kernel that the lock's holder waits for: as it was when that began
    return published_.state();
  }
}

Tracking BufferCore::tracking() const noexcept {
  return parts_->watch.tracking();
}

std::vector<LinkStatistics> BufferCore::links() const {
  BufferLook const look{parts_->lock, parts_->terms};
  return parts_->counters.links();
}

BufferStatistics BufferCore::statistics() const noexcept {
  return parts_->counters.statistics();
}

void BufferCore::fail_later(std::exception_ptr failure) noexcept {
  if (parts_->lock.is_lost()) return;  // every access to it fails
  try {
    Guard parts(*parts_, detail::Watched::no);
    if (!parts->deferred) parts->deferred = std::move(failure);
  } catch (std::exception const& error) {  // in a kernel that the lock's holder waits for
    log(LogLevel::error, "a failure that no access to the buffer will tell:");
    log(LogLevel::error, error.what());
  }
}

void BufferCore::resolve_known(ByteRange range, std::exception_ptr const& known) noexcept {
  if (parts_->lock.is_lost()) return;
  try {
    detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
      Guard parts(*parts_, detail::Watched::no);
      try {
        return Reconciler(*parts).resolve_or_wait(context, range);
      } catch (WaitInterrupted const&) {  // NOLINT(bugprone-empty-catch): the next access resolves it
      } catch (...) {
        auto failure = std::current_exception();
        if (failure != known && !parts->deferred) parts->deferred = std::move(failure);
      }
      return true;
    });
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): in such a kernel; the next access resolves it
  }
}

void BufferCore::allocate(bool host, bool device) {
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    Guard parts(*parts_);
    if (host && !ReplicaAllocator(*parts).ensure_host(context, parts->replicas.whole())) return false;
    auto const whole = parts->replicas.whole();
    if (device && !ReplicaAllocator(*parts).ensure(context, parts->place_of(parts->replicas.default_device()), whole))
      return false;
    parts->allocated = true;
    return true;
  });
}

void BufferCore::free() {
  Guard parts(*parts_);
  parts->check_not_captured();
  parts->drop_everything();
  parts->allocated = false;
  parts->begin_anew();
}

void BufferCore::reset() {
  Guard parts(*parts_);
  parts->check_not_captured();
  parts->drop_everything();
  parts->forget_history();
  parts->begin_anew();
}

void BufferCore::discard() {
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    Guard parts(*parts_);
    SharedAccess(*parts).refuse("discard");
    if (!Reconciler(*parts).resolve_or_wait(context, parts->replicas.whole(), true)) return false;
    parts->replicas.coherence.discard();
    parts->watch.forget(parts->replicas.bytes());
    parts->begin_anew();
    return true;
  });
}

void BufferCore::hint_next_use(Device& device, bool use) {
  Guard parts(*parts_);
  auto const next = use ? NextUse::soon : NextUse::none;
  parts->replicas.places[parts->place_of(device)].next_use = next;
  for (auto& one : parts->replicas.places.devices()) {
    if (one.window && one.device == &device) one.next_use = next;
  }
}

int BufferCore::priority() const noexcept {
  return parts_->priority.load(std::memory_order_relaxed);
}

void BufferCore::set_priority(int priority) noexcept {
  parts_->priority.store(priority, std::memory_order_relaxed);
}

void BufferCore::advise(ByteRange range, Advice advice, Device* place, bool holds) {
  if (advice > Advice::accessed_by) {
    throw InvalidArgument("advice", fmt::format("{}", static_cast<unsigned>(advice)),
                          "read_mostly, preferred_location or accessed_by");
  }
  if (advice == Advice::read_mostly) place = nullptr;
  if (advice != Advice::read_mostly && place == nullptr) place = &default_device();
  Guard parts(*parts_);
  parts->check_range(range);
  AdvisedRange const advised{advice, place, range};
  holds ? parts->advice.give(advised) : parts->advice.take_back(advised);
  parts->replicas.for_each([&](Replica& replica) { replica.apply_advice(parts->advice); });
}

std::vector<AdvisedRange> BufferCore::advice() const {
  BufferLook const look{parts_->lock, parts_->terms};
  return parts_->advice.list();
}

void BufferCore::validate() const {
  BufferLook const look{parts_->lock, parts_->terms};
  auto const& replicas = parts_->replicas;
  replicas.coherence.validate();
  if (replicas.bytes() == 0) return;
  for (Place place = host_place; place < replicas.places.count(); ++place) {
    if ((replicas.at(place) != nullptr) == replicas.coherence.has_storage(place)) continue;
    throw std::logic_error("BufferCore: coherence and memory disagree on " + replicas.places.name(place));
  }
}

}  // namespace unimem
