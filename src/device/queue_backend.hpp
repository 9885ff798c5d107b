#pragma once

#include <unimem/core/detail/lazy.hpp>
#include <unimem/device/detail/transfer_meter.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/device/program.hpp>

#include "device/queue_control.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace unimem {
class Device;
class Queue;
}  // namespace unimem

namespace unimem::detail {

/// What a copy comes with besides its bytes.
struct CopyTerms {
  std::span<const Event> needs;  ///< for the duration of the call
  SharedMeter meter;             ///< goes with the copy, to `Device::count_upload` and its like
};

/// What a backend implements behind `Queue`. Arguments have been checked and sizes are not zero. Each call takes a
/// ticket from `control()`, and the backend calls `control().finish` for it exactly once, in order.
///
/// Work starts when what it `needs` has ended. If some of that failed, a backend that can tell by then does not start
/// it, and says so with `control().skip`; that the ticket fails as well is not the backend's business.
class QueueBackend {
 public:
  QueueBackend();
  QueueBackend(QueueBackend const&) = delete;
  QueueBackend& operator=(QueueBackend const&) = delete;

  /// Waits for all work.
  virtual ~QueueBackend();

  virtual Event upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) = 0;
  virtual Event download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) = 0;
  virtual Event copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) = 0;
  /// One after the other, unless the backend knows better.
  virtual Event upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                              CopyTerms const& terms);
  virtual Event download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces, CopyTerms const& terms);
  virtual Event copy_pieces(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces,
                            CopyTerms const& terms);
  virtual Event fill(DeviceMemory to, std::span<const std::byte> pattern) = 0;
  /// From a device that this one `copies_from`.
  virtual Event copy_from(DeviceMemory to, Device& other, DeviceMemory from, std::size_t bytes, CopyTerms const& terms);
  virtual Event run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
                    std::span<const Event> needs) = 0;
  /// Makes runs, at least one, ready to be submitted as one; null where the driver has no such thing.
  [[nodiscard]] virtual std::shared_ptr<CapturedRuns const> capture(std::span<const ProgramRun> runs);
  /// Runs what `capture` of a queue of this backend has made.
  virtual Event run_captured(std::shared_ptr<CapturedRuns const> captured, std::span<const Event> needs);
  /// Nothing where the driver has no use for it.
  virtual std::optional<Event> prefetch(DeviceMemory /*memory*/, bool /*to_host*/) { return std::nullopt; }
  /// Work that `submit` puts into the driver's queue; there is one (`native`).
  virtual Event run_native(std::function<void(void*)> const& submit, std::span<const Event> needs);
  /// Work that does nothing.
  virtual Event mark() = 0;

  /// Later work starts when an event of another queue, not yet done, has ended. Its failure does not matter here.
  virtual void wait(Event event) = 0;

  /// Later work starts when `events` have ended.
  void wait_for(std::span<const Event> events) {
    for (auto const event : events) {
      if (event.queue_id() != control_.id() && !event.ready()) wait(event);
    }
  }

  /// For backends whose driver starts whatever it is given: behind `events`, and if one of them is known by then to
  /// have failed, the end of work that is not given to it at all. An event that has ended has seen its own needs end,
  /// so that to ask for its error does not block.
  [[nodiscard]] std::optional<Event> skipped_behind(std::span<const Event> events) {
    wait_for(events);
    if (std::ranges::none_of(events, [](Event event) { return event.error() != nullptr; })) return std::nullopt;
    auto const event = mark();
    control_.skip(event.ticket());
    return event;
  }

  /// The driver's queue, which others may use from here on, or null.
  [[nodiscard]] virtual void* native() const { return nullptr; }

  [[nodiscard]] QueueControl& control() const noexcept { return control_; }

  /// See `Queue::host_side`.
  [[nodiscard]] Queue& host_side();

 private:
  /// The end of what `submit(i)` submits for every i below `count`, each with the fate of `needs`.
  template <class Submit>
  Event all_of(std::size_t count, std::span<const Event> needs, Submit const& submit);

  QueueControl& control_;
  Lazy<Queue> host_side_;  ///< the backend's destructor has waited for all work that waits for it
};

}  // namespace unimem::detail
