#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/inside.hpp"
#include "buffer/storage.hpp"

#include <mutex>
#include <string>
#include <utility>

// What a buffer does for its next uses when its manager asks it to, by what it has counted of the last ones.

namespace unimem {
namespace {

/// Copied fewer times than this, it is not copied again and again.
constexpr std::uint64_t often = 4;

}  // namespace

/// Locks the host's memory, or sees to it that the next is locked; the bytes.
std::size_t BufferCore::Inside::pin_host(OptimizationTerms const& terms, OptimizationStep& step) {
  constexpr auto relaxed = std::memory_order_relaxed;
  bool const ordinary = host && host->pooled() && host->location() == Location::host;
  if (spill_files != nullptr) return 0;  // what is locked could not go to a file when there is no more memory
  // What is asked for already needs no asking.
  if (!ordinary || options.pinned || pin_next || unified != nullptr || pinned.load(relaxed)) return 0;
  // Locking touches every page, and the system would report as written what was not.
  if (host_writes != nullptr) return 0;
  RecordedUse use;
  use.buffers = 1;
  use.uploads = counters.uploads.load(relaxed);
  use.uploaded_bytes = counters.upload_bytes.load(relaxed);
  use.downloads = counters.downloads.load(relaxed);
  use.downloaded_bytes = counters.download_bytes.load(relaxed);
  if (use.copies() < often || bytes > terms.most_bytes) return 0;
  auto const seconds = copy_seconds(use, terms.machine);
  auto const pinning = static_cast<double>(bytes) / terms.machine.pin_bytes_per_second;
  if (seconds.pageable <= seconds.pinned + pinning) return 0;
  step.seconds_saved = seconds.pageable - seconds.pinned - pinning;
  if (!host->can_be_locked()) {
    step.deferred = true;
  } else if (auto refusal = host->lock_in_place(); !refusal.empty()) {
    manager->note_refused_pinning();
    throw UnsupportedOperation("locking host memory", display_name(), std::move(refusal));
  } else {
    pinned.store(true, relaxed);
  }
  pin_next = true;
  return bytes;
}

/// Gives a device's copy back that the host has as well and that is not about to be used; the bytes.
std::size_t BufferCore::Inside::release_idle(BufferCore& self, Place place, OptimizationTerms const& terms) {
  auto const& one = side(place);
  if (!one.storage || one.storage->leased() || captured || !pending.empty() || !one.storage->at_rest()) return 0;
  if (!holds(host_place, whole())) return 0;  // that would be saving, and not for nothing
  bool const idle = one.next_use == NextUse::none ||
                    (one.next_use == NextUse::unsaid && one.history.expected_wait(*one.clock) > terms.idle_wait);
  if (!idle) return 0;
  auto const given = one.storage->capacity();
  release_now(self, place, host_place);
  return given;
}

/// Brings a copy to a device that is about to be used there; the bytes. It is not waited for.
std::size_t BufferCore::Inside::place_ahead(BufferCore& self, Place place, OptimizationTerms const& terms,
                                            OptimizationStep& step) {
  auto const& one = side(place);
  if (one.storage || captured || bytes == 0 || bytes > terms.most_bytes || !holds(host_place, whole())) return 0;
  // Mapped, about to be written by a call of another thread's, or by an address that was given out: a copy would be of
  // half of what counts as written already.
  if (auto const& from = in_memory_of_host(); from && from->may_be_written_by_address()) return 0;
  bool const soon = one.next_use == NextUse::soon ||
                    (one.next_use == NextUse::unsaid && one.history.expected_wait(*one.clock) < terms.idle_wait / 2);
  if (!soon) return 0;
  detail::AccessContext context{detail::AccessContext::Waiting::never};  // with the lock held
  static_cast<void>(prepare(context, self, place, whole(), Intent::read, one.device->default_queue()));
  if (terms.machine.to_device) step.seconds_saved = terms.machine.to_device->seconds(bytes);
  return bytes;
}

OptimizationStep BufferCore::try_optimize(Device& device, Optimization what, OptimizationTerms const& terms) {
  OptimizationStep step;
  step.what = what;
  step.device = &device;
  if (inside_->pins.load(std::memory_order_acquire) != 0) return step;
  std::unique_lock lock{*inside_, std::try_to_lock};
  if (!lock.owns_lock() || inside_->shares(device)) return step;
  lock.release();
  Guard inside(*this, std::adopt_lock);
  auto const place = inside->find_place(device);
  if (!place) return step;
  step.buffer = inside->id;
  step.name = inside->name;
  // Failures are the owner's to hear of: what has any, or work under way, is let be.
  inside->collect_host_writes(false, false);
  if (inside->deferred) return step;
  switch (what) {
    case Optimization::pin:
      step.bytes = inside->pin_host(terms, step);
      break;
    case Optimization::release:
      step.bytes = inside->release_idle(*this, *place, terms);
      break;
    case Optimization::place:
      step.bytes = inside->place_ahead(*this, *place, terms, step);
      break;
  }
  return step;
}

}  // namespace unimem
