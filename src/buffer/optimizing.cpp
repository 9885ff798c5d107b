#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/reconciler.hpp"
#include "manager/access_context.hpp"

#include <mutex>
#include <string>
#include <utility>

// What a buffer does for its next uses when its manager asks it to, by what it has counted of the last ones.

namespace unimem {

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferParts;
using detail::Reconciler;

namespace {

/// Copied fewer times than this, it is not copied again and again.
constexpr std::uint64_t often = 4;

/// Locks the host's memory, or sees to it that the next is locked; the bytes.
std::size_t pin_host(BufferParts& parts, OptimizationTerms const& terms, OptimizationStep& step) {
  auto const& host = parts.replicas.host();
  auto const bytes = parts.replicas.bytes();
  bool const ordinary = host && host->pooled() && host->location() == Location::host;
  if (parts.terms.spill_files != nullptr)
    return 0;  // what is locked could not go to a file when there is no more memory
  // What is asked for already needs no asking.
  bool const asked = parts.terms.options.pinned || parts.pin_next || parts.pinned.load(std::memory_order_relaxed);
  if (!ordinary || asked || parts.replicas.places.unified() != nullptr) return 0;
  // Locking touches every page, and the system would report as written what was not.
  if (parts.watch.writes() != nullptr) return 0;
  auto const moved = parts.counters.statistics();
  RecordedUse use;
  use.buffers = 1;
  use.uploads = moved.host_to_device_copies;
  use.uploaded_bytes = moved.host_to_device_bytes;
  use.downloads = moved.device_to_host_copies;
  use.downloaded_bytes = moved.device_to_host_bytes;
  if (use.copies() < often || bytes > terms.most_bytes) return 0;
  auto const seconds = copy_seconds(use, terms.machine);
  auto const pinning = static_cast<double>(bytes) / terms.machine.pin_bytes_per_second;
  if (seconds.pageable <= seconds.pinned + pinning) return 0;
  step.seconds_saved = seconds.pageable - seconds.pinned - pinning;
  if (!host->can_be_locked()) {
    step.deferred = true;
  } else if (auto refusal = host->lock_in_place(); !refusal.empty()) {
    parts.terms.manager->note_refused_pinning();
    throw UnsupportedOperation("locking host memory", parts.terms.display_name(), std::move(refusal));
  } else {
    parts.pinned.store(true, std::memory_order_relaxed);
  }
  parts.pin_next = true;
  return bytes;
}

/// Gives a device's copy back that the host has as well and that is not about to be used; the bytes.
std::size_t release_idle(BufferParts& parts, Place place, OptimizationTerms const& terms) {
  auto& replicas = parts.replicas;
  auto const& one = replicas.places[place];
  if (!one.replica || one.replica->holds().leased() || parts.captured) return 0;
  if (!replicas.pending.empty() || !one.replica->work().at_rest()) return 0;
  if (!replicas.holds(host_place, replicas.whole())) return 0;  // that would be saving, and not for nothing
  if (!one.is_idle(terms.idle_wait)) return 0;
  auto const given = one.replica->capacity();
  BufferAccess(parts).release_now(place, host_place);
  return given;
}

/// Brings a copy to a device that is about to be used there; the bytes. It is not waited for.
std::size_t place_ahead(BufferParts& parts, Place place, OptimizationTerms const& terms, OptimizationStep& step) {
  auto& replicas = parts.replicas;
  auto const& one = replicas.places[place];
  auto const bytes = replicas.bytes();
  if (one.replica || replicas.places.has_windows() || parts.captured || bytes == 0 || bytes > terms.most_bytes)
    return 0;
  if (!replicas.holds(host_place, replicas.whole())) return 0;
  // Mapped, about to be written by a call of another thread's, or by an address that was given out: a copy would be of
  // half of what counts as written already.
  if (auto const& from = replicas.in_memory_of_host(); from && from->holds().may_be_written_by_address()) return 0;
  if (!one.is_used_soon(terms.idle_wait / 2)) return 0;
  AccessContext context{AccessContext::Waiting::for_work};
  auto& queue = one.device->default_queue();
  // Where room would have to be made it stays away.
  if (!BufferAccess(parts).prepare(context, place, replicas.whole(), Intent::read, queue)) return 0;
  if (terms.machine.to_device) step.seconds_saved = terms.machine.to_device->seconds(bytes);
  return bytes;
}

}  // namespace

OptimizationStep BufferCore::try_optimize(Device& device, Optimization what, OptimizationTerms const& terms) {
  OptimizationStep step;
  step.what = what;
  step.device = &device;
  Guard parts(*parts_, Guard::at_once);
  if (!parts || parts->replicas.places.shares(device)) return step;
  auto const place = parts->replicas.places.find(device);
  if (!place) return step;
  step.buffer = parts->terms.id;
  step.name = parts->terms.name;
  // Failures are the owner's to hear of: what has any, or work under way, is let be.
  Reconciler(*parts).collect_host_writes(false, false);
  if (parts->deferred) return step;
  switch (what) {
    case Optimization::pin:
      step.bytes = pin_host(*parts, terms, step);
      break;
    case Optimization::release:
      step.bytes = release_idle(*parts, *place, terms);
      break;
    case Optimization::place:
      step.bytes = place_ahead(*parts, *place, terms, step);
      break;
  }
  return step;
}

}  // namespace unimem
