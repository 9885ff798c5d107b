#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>
#include <unimem/device/detail/transfer_meter.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/device/program.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace unimem {

class Device;

namespace detail {
class QueueBackend;
}

/// An in-order queue of work on one device. Every operation is asynchronous: it returns at once with the Event of its
/// ticket, and the memory it names, on both sides, must stay alive and untouched until that event is done.
///
/// A failure sticks to its own ticket; later work of the queue still runs. Work that `needs` the results of other work
/// starts when that has ended, and if it failed fails with its error: a kernel on the host is not even started then.
///
/// Destroying a queue waits for its work; a static one's, whose kernel on the host has called `std::exit`, does not end
/// any more, and what is behind it stays undone: waiting for it throws UnsupportedOperation there. Thread-safe.
/// Move-only; using a moved-from queue throws InvalidArgument, asking it for numbers and events gives nothing.
class UNIMEM_API Queue {
 public:
  Queue(Device& device, std::unique_ptr<detail::QueueBackend> backend);
  Queue(Queue&&) noexcept;
  Queue& operator=(Queue&&) noexcept;
  ~Queue();

  [[nodiscard]] Device& device() const {
    if (device_ == nullptr) detail::throw_empty_handle("queue");
    return *device_;
  }

  /// Unique among all queues of the process, never reused, never 0 (but of a moved-from queue).
  [[nodiscard]] std::uint64_t id() const noexcept;

  /// Copies `bytes` from host memory to the start of `to`. Throws InvalidArgument if `to` is smaller.
  /// Like every copy it can carry a meter along, which counts how long it took.
  Event upload(DeviceMemory to, void const* from, std::size_t bytes, std::span<const Event> needs = {},
               SharedMeter meter = {});

  /// Copies `bytes` from the start of `from` to host memory. Throws InvalidArgument if `from` is smaller.
  Event download(void* to, DeviceMemory from, std::size_t bytes, std::span<const Event> needs = {},
                 SharedMeter meter = {});

  /// Copies several pieces from host memory to `to` as one piece of work: done when all are there, failed if one of
  /// them failed. In which order they go is not specified, so at the target no two may overlap. One command where
  /// the device has one for them (`Device::batches_copies`, or rows of a rectangle), else one for each. The host's
  /// memory is of one kind throughout, pinned or pageable. Every piece counts as a copy. Throws InvalidArgument if a
  /// piece does not lie in `to`.
  Event upload(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces, std::span<const Event> needs = {},
               SharedMeter meter = {});

  /// The same from `from` to host memory.
  Event download(void* to, DeviceMemory from, std::span<const CopyPiece> pieces, std::span<const Event> needs = {},
                 SharedMeter meter = {});

  /// Copies within the device. The two must not overlap. Throws InvalidArgument if either is smaller than `bytes`.
  Event copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, std::span<const Event> needs = {},
             SharedMeter meter = {});

  /// Several pieces within the device, as `upload` copies pieces. No target may overlap a source. Throws
  /// InvalidArgument if one does, or a piece does not lie in its memory.
  Event copy(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces, std::span<const Event> needs = {},
             SharedMeter meter = {});

  /// Copies from the start of another device's memory without the host's help. Throws UnsupportedOperation unless
  /// `device().copies_from(other)`, InvalidArgument if either memory is smaller than `bytes`.
  Event copy(DeviceMemory to, Device& other, DeviceMemory from, std::size_t bytes, std::span<const Event> needs = {},
             SharedMeter meter = {});

  /// Asks that unified memory be moved to this device, or to the host, ahead of its use there. A hint: nothing but time
  /// depends on it, and it is no work where the driver has no use for it.
  Event prefetch(DeviceMemory memory, bool to_host = false);

  /// Repeats `pattern` over all of `to`. Pattern sizes are 1, 2, 4, 8 or 16 bytes and must divide `to.bytes`.
  Event fill(DeviceMemory to, std::span<const std::byte> pattern);

  /// Runs a program made by this queue's device. Throws KernelError if arguments do not fit it, InvalidArgument for no
  /// program.
  Event run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
            std::span<const Event> needs = {});

  /// Makes runs in a row ready to be submitted as one: where the driver has such a thing (a CUDA graph), one call
  /// submits them all, elsewhere each is submitted by itself. Nothing runs now, and the memory they name must stand as
  /// long as they may be run. Throws what `run` would, as far as that shows before they run, and UnsupportedOperation
  /// while the driver's own queue is being captured by another library.
  [[nodiscard]] std::shared_ptr<CapturedRuns const> capture(std::vector<ProgramRun> runs);

  /// Runs what this queue's device has captured; the event is the end of it all, and fails if any of it does. Throws
  /// KernelError for what another device has captured, InvalidArgument for null.
  Event run(std::shared_ptr<CapturedRuns const> captured, std::span<const Event> needs = {});

  /// Calls `submit` once, now, with the driver's own queue (`cl_command_queue`, `cudaStream_t`): what it puts in there
  /// is this queue's work, in its order, and the event is its end. Nothing else gets between meanwhile, so `submit`
  /// must not use this queue itself; on CUDA its context is the thread's current one. If `submit` throws, the work has
  /// failed with that exception once what it had put in before has ended. It is not called at all if something that
  /// the work needs is known to have failed. Throws UnsupportedOperation where there is no driver's queue.
  Event run_native(std::function<void(void*)> const& submit, std::span<const Event> needs = {});

  /// One event for several: done when all of them are, failed if one of them failed. A default-constructed one for
  /// none, the one itself for one.
  Event join(std::span<const Event> events);

  /// Lets later work of this queue start only when `event` is done, well or badly: an order, not a need. Free for this
  /// queue's own events and for done ones.
  void wait(Event event);

  /// A queue of the cpu device that belongs to this one, for the host's part in its copies: held up by nothing but what
  /// holds up this one's. Made on first use, and a thread with it; gone with this one.
  [[nodiscard]] Queue& host_side();

  /// The end of everything submitted so far. Free: nothing is submitted. What the queue was told to wait for need not
  /// be in it before something is submitted behind that.
  [[nodiscard]] Event record() const noexcept;

  /// The end of everything so far, with all that the queue was told to wait for: work that does nothing.
  Event mark();

  /// Blocks until everything submitted so far has ended; throws the first failure since the last call, if any, and
  /// UnsupportedOperation in a kernel of this queue.
  void synchronize();

  /// The highest ticket known to have ended, with all before it.
  [[nodiscard]] Ticket completed() const noexcept;

  /// The driver's own queue (`cl_command_queue`, `cudaStream_t`); throws UnsupportedOperation where there is none.
  template <class Native>
  [[nodiscard]] Native native() const {
    static_assert(sizeof(Native) == sizeof(void*), "a native queue is a pointer-sized handle");
    return reinterpret_cast<Native>(native_handle());
  }

 private:
  [[nodiscard]] void* native_handle() const;
  [[nodiscard]] detail::QueueBackend& backend() const;
  template <class Submit>
  Event after(std::span<const Event> needs, Submit const& submit);

  Device* device_;
  std::unique_ptr<detail::QueueBackend> backend_;
};

}  // namespace unimem
