#pragma once

#include <unimem/buffer/advised_range.hpp>
#include <unimem/buffer/detail/published_state.hpp>
#include <unimem/buffer/device_lease.hpp>
#include <unimem/buffer/map_mode.hpp>
#include <unimem/buffer/options.hpp>
#include <unimem/buffer/statistics.hpp>
#include <unimem/coherence/intent.hpp>
#include <unimem/coherence/state.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/detail/resident.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

class BufferCore;

namespace detail {
class AccessContext;
class BackingFile;
class BufferGuard;
class CopyChoice;
struct BufferParts;
struct OperandTurn;
class SharedMemory;
class StaleViews;
class WrittenMap;
}  // namespace detail

/// One buffer's part in a piece of device work.
struct Operand {
  BufferCore* buffer = nullptr;
  ByteRange range;
  Intent intent = Intent::read;
};

/// Submits work on the memory of some operands; `needs`: the events it needs (it must hand them on: `Queue::run`,
/// `copy`).
using DeviceWork = std::function<Event(std::span<const DeviceMemory>, std::span<const Event> needs)>;

/// Makes every operand ready on `queue`'s device and in `queue`'s order, calls `submit` with the memory of each
/// operand's range and the events the work needs, and records the event it returns as the work that read and wrote
/// them. No operand gives memory while room is made for another, so that they cannot evict each other; operands that do
/// not fit the device together are OutOfMemory before room is made for some of them. The same buffer may appear more
/// than once, also with ranges that overlap: the work sees what was there before it, and what it leaves where it writes
/// is what counts.
///
/// If anything throws, nothing was written anywhere; copies that were already made stay valid. Errors of the work
/// itself surface from the event, and from the next access to the bytes it was to write, whose last good copy is then
/// restored. Work that needs failed work fails with its error.
UNIMEM_API Event use_on_device(Queue& queue, std::span<const Operand> operands, DeviceWork const& submit);

/// A window of one buffer.
struct BufferWindow {
  BufferCore* buffer = nullptr;
  ByteRange range;
};

/// Copies between two windows of one size along the nearest path: on the host if the source is current there; else from
/// the device that has it to the target's device, directly where the two reach each other. The windows may overlap.
/// Returns when the copy is under way; reading either buffer waits as needed. Throws SizeMismatch.
UNIMEM_API Event copy_bytes(BufferWindow from, BufferWindow to, std::size_t element_bytes);

/// Copies pieces, such as the rows of a rectangle, from one buffer to another, or within one: as one piece of work if
/// both are at home on one device that alone has all of them current, else piece by piece as `copy_bytes` does. Where
/// sources and targets of one buffer overlap, the result is as if all sources had been copied aside first: so they are,
/// into memory of their size, beside where they are current. Throws OutOfMemory, with nothing changed, if there is
/// none.
UNIMEM_API void copy_pieces(BufferCore& from, BufferCore& to, std::span<const CopyPiece> pieces,
                            std::size_t element_bytes);

/// What a UnifiedBuffer is underneath: bytes, where they are current, the memory behind each place, and the work in
/// flight. It asks Coherence what to copy, gets memory from the manager, lets queues carry the copies out, and
/// remembers whose work must end before whose may start.
///
/// Thread-safe as promised by the library: concurrent read accesses are safe; concurrent writers need the caller's
/// lock. (Inside, every operation that changes anything locks; a state query or a host read of current bytes is one
/// atomic load.)
class UNIMEM_API BufferCore final : public Resident {
 public:
  /// Host memory that exists already.
  struct Wrapped {
    void* pointer = nullptr;
    Ownership ownership;
    Location location = Location::host;  ///< or pinned
  };

  /// Throws InvalidArgument for more bytes than an address space has, UnsupportedOperation for options that the system
  /// or the device does not serve.
  [[nodiscard]] static std::shared_ptr<BufferCore> make(std::size_t bytes, BufferOptions&& options);
  /// Besides, UnsupportedOperation for Tracking::pages.
  [[nodiscard]] static std::shared_ptr<BufferCore> make(std::size_t bytes, BufferOptions&& options, Wrapped wrapped);
  /// The same for a buffer that was made at `site`, if the options do not say where.
  [[nodiscard]] static std::shared_ptr<BufferCore> make(std::size_t bytes, BufferOptions&& options,
                                                        std::source_location const& site);
  /// One whose first replica is a file. UnsupportedOperation for Tracking::pages and unified memory.
  [[nodiscard]] static std::shared_ptr<BufferCore> make(BufferOptions&& options,
                                                        std::shared_ptr<detail::BackingFile> file);
  /// One over memory that another process has made, with all of its bytes there.
  [[nodiscard]] static std::shared_ptr<BufferCore> make(BufferOptions&& options,
                                                        std::shared_ptr<detail::SharedMemory> memory);
  ~BufferCore() override;

  /// Has its host memory where other processes can have it, too, with all of its bytes there, and returns it: a copy,
  /// counted as one from "host" to "shared memory", unless it is so already. As with `resize`, addresses that were
  /// given to be read are no more the buffer's. Throws UnsupportedOperation for a buffer over a file, or over memory
  /// that was wrapped or is a device's, and while it is leased, mapped or captured, or where an address was given to be
  /// written through; OutOfMemory. Nothing has changed then.
  [[nodiscard]] std::shared_ptr<detail::SharedMemory> share();
  /// That memory; null: no other process can have it.
  [[nodiscard]] std::shared_ptr<detail::SharedMemory> shared_memory() const;
  /// Whether it is so already, or was asked to be.
  [[nodiscard]] bool is_shared() const;
  /// Of a buffer without data: all of its bytes are what was lost by that failure.
  void lose(std::exception_ptr failure);

  /// May be asked while another thread resizes the buffer: it is the one size or the other.
  [[nodiscard]] std::size_t size_bytes() const noexcept { return published_.bytes(); }
  [[nodiscard]] BufferState state() const noexcept {
    return published_.needs_look() ? state_by_looking() : published_.state();
  }
  /// How host writes are noticed: `Tracking::pages` serves as `access` where the buffer is too small to gain, or shares
  /// its memory with a device.
  [[nodiscard]] Tracking tracking() const noexcept;
  [[nodiscard]] std::string_view name() const noexcept;
  /// No other buffer of the process has it, whether it lives still or not.
  [[nodiscard]] std::uint64_t id() const noexcept;
  [[nodiscard]] Device& default_device() const {
    auto* const known = default_device_.load(std::memory_order_acquire);
    return known != nullptr ? *known : find_default_device();
  }
  [[nodiscard]] MemoryManager& manager() const noexcept;
  [[nodiscard]] bool is_pinned() const noexcept;
  /// Where it is at home: what its options say, but `host` for what should be pinned and was refused.
  [[nodiscard]] Location location() const;
  [[nodiscard]] bool is_allocated() const;
  [[nodiscard]] bool valid_on_host() const;
  [[nodiscard]] bool valid_on(Device& device) const;
  /// How many bytes of `range` an access on `device` would have to bring there, as far as is known now: writes through
  /// kept pointers that have not been looked for are not in it.
  [[nodiscard]] std::size_t missing_on(Device& device, ByteRange range) const;
  /// The devices that have memory for it, in the order in which it first came to them; those that work in the host's
  /// memory among them.
  [[nodiscard]] std::vector<Device*> devices_with_memory() const;
  [[nodiscard]] BufferStatistics statistics() const noexcept;
  /// What moved between which places, in the order in which they first did.
  [[nodiscard]] std::vector<LinkStatistics> links() const;
  [[nodiscard]] BufferOptions const& options() const noexcept;
  /// Whether it was made from a file, and whether from one that it may not change.
  [[nodiscard]] bool is_from_file() const noexcept;
  [[nodiscard]] bool is_read_only() const noexcept;
  /// Throws UnsupportedOperation in a forked child that inherited it. `what`: what is asked of it, as in "launching".
  void require_made_here(std::string_view what) const;

  /// The start of the host storage, with `range` current there (write intent: about to be overwritten). Waits for what
  /// it needs. `looks`: with read intent, whether the caller reads what is there, which under UNIMEM_CHECK=2 should
  /// have been written; false for callers that give the address to others, which may write first.
  [[nodiscard]] void* host(ByteRange range, Intent intent, bool looks = true) {
    if (published_.host_may_access(intent)) return published_.host_address();
    return host_slow(range, intent, looks);
  }

  /// What `host` would return where it would do nothing more than that; null otherwise, and for a buffer without bytes.
  /// The memory stays as long as after `host`. One atomic load.
  [[nodiscard]] void* host_at_once(Intent intent) const noexcept {
    return published_.host_may_access(intent) ? published_.host_address() : nullptr;
  }

  /// Whether `host` waits for nothing, whatever the range. One atomic load.
  [[nodiscard]] bool host_ready(Intent intent) const noexcept { return published_.host_is_ready(intent); }
  /// Whether `sync_to_device` returns at once, whatever the range. One atomic load.
  [[nodiscard]] bool device_ready(Device const& device) const noexcept { return published_.is_current_on(device); }
  /// The work under way that a host access to `range` would wait for if it is not `host_ready`, or a synchronous one of
  /// `device`: for callers that wait in a way of their own first, with signals looked at or for some time only. Starts
  /// nothing and raises nothing.
  [[nodiscard]] std::vector<Event> work_on(ByteRange range, Intent intent, Device const* device = nullptr);
  /// All work under way on the buffer, on every side, for callers that are about to release memory: of each queue the
  /// last.
  [[nodiscard]] std::vector<Event> work_under_way();

  /// A lease on the memory of `device`, with `range` current there. With a queue: in that queue's order, without
  /// waiting; without: when this returns the data is there. `looks` as for `host`.
  [[nodiscard]] DeviceLease lease(Device& device, Queue* queue, ByteRange range, Intent intent, bool looks = true);

  /// For the `submit` of `use_on_device` alone, of one of its operands there and the `memory` that it was given for it:
  /// what may become a lease on that memory.
  [[nodiscard]] LeaseOption lease_option(Device& device, ByteRange range, DeviceMemory memory);

  /// A lease on all of the buffer's memory on `queue`'s device, for work that is captured now and runs later. Nothing
  /// is copied: throws UnsupportedOperation unless every range of `current` is up to date there. With `begins`, every
  /// other use of the buffer is UnsupportedOperation until `end_capture`; throws it, too, if another capture is under
  /// way already.
  [[nodiscard]] DeviceLease capture(Queue& queue, ByteRange range, std::span<const ByteRange> current, bool begins);
  void end_capture() noexcept;

  /// Expires with the buffer.
  [[nodiscard]] std::weak_ptr<void const> life() const;

  /// For checked launches, under UNIMEM_CHECK=2: what of it has been written, and which accesses touch stale bytes.
  /// Null otherwise.
  [[nodiscard]] std::shared_ptr<detail::WrittenMap> const& written_map() const noexcept;
  [[nodiscard]] std::shared_ptr<detail::StaleViews> stale_views() const noexcept;

  /// Starts bringing `range` up to date on a device; when it will be there.
  Event prefetch(Device& device, Queue* queue, ByteRange range);
  /// Starts bringing `range` up to date on the host; when it will be there.
  Event fetch(ByteRange range);
  void sync_to_device(Device& device, ByteRange range) {
    if (!device_ready(device)) sync_to_device_slow(device, range);
  }
  /// Brings several ranges, none of which meet, to the host at once, for a caller that is about to read them.
  void bring_to_host(std::span<const ByteRange> ranges) {
    if (!host_ready(Intent::read)) bring_to_host_slow(ranges);
  }
  void sync_to_host(ByteRange range) {
    if (!host_ready(Intent::read)) sync_to_host_slow(range);
  }
  void synchronize(ByteRange range);
  /// The same without waiting.
  Event sync_to_device_async(Device& device, ByteRange range);
  Event sync_to_host_async(ByteRange range);
  Event synchronize_async(ByteRange range);

  void mark_host_dirty(ByteRange range);
  /// `event`: when the work that wrote ends. A default-constructed one says nothing: the next read-back waits for the
  /// device.
  void mark_device_dirty(Device* device, ByteRange range, Event event);

  /// Repeats `pattern` over `range` on the side where the data is current: a device if one holds it all, without
  /// waiting for it; else the host.
  void fill(ByteRange range, std::span<const std::byte> pattern);
  void write(std::size_t offset, std::span<const std::byte> data);
  /// Where no host memory is to be had, spilled bytes come straight from their file and a device's from the device, and
  /// nothing about the buffer changes.
  void read(std::size_t offset, std::span<std::byte> data);
  /// The same of a buffer that has contents, and always straight from where they are, the host first and a device last,
  /// so that the buffer needs no memory for it; but in the middle of work it is read as by `read`.
  void read_in_place(std::size_t offset, std::span<std::byte> data);
  /// Whether its bytes are anything at all: each is current somewhere then, or lost, which reading it says. Waits for
  /// the work under way, and throws its failures.
  [[nodiscard]] bool has_contents();
  /// Throws what `write` would throw at once, whatever it wrote: read-only, strict and not allocated, captured.
  void require_writable(std::string_view operation) const;
  /// What it has of a device's own memory.
  struct DeviceShare {
    Device* device = nullptr;
    ByteRanges current;     ///< what is up to date there
    std::size_t bytes = 0;  ///< of memory
    bool leased = false;    ///< or work with it is being captured: it stays
  };
  [[nodiscard]] std::vector<DeviceShare> shares_of_devices() const;
  /// The same without waiting, except for want of host memory: `data` must stay until the event is done.
  Event fill_async(ByteRange range, std::span<const std::byte> pattern);
  Event write_async(std::size_t offset, std::span<const std::byte> data);
  Event read_async(std::size_t offset, std::span<std::byte> data);
  /// Whether any of these bytes is of the memory that the host side stands in.
  [[nodiscard]] bool is_own_host_memory(void const* pointer, std::size_t count) const;

  /// The host memory of `range` as `mode` wants it, and a hold on it: until the lease ends the host side neither moves
  /// nor goes. `looks` as for `host`.
  [[nodiscard]] DeviceLease map(ByteRange range, MapMode mode, bool looks = true);
  /// As `map` to read, for callers that look there now and then for as long as they like: other processes that share
  /// the memory may write there meanwhile.
  [[nodiscard]] DeviceLease hold_host(ByteRange range);
  /// Counts `range` as written on the host, unless `mapped`, the lease of its mapping, holds memory that the buffer has
  /// let go since: those bytes belong to no buffer any more. Once for each mapping. Throws CoherenceConflict, and
  /// failures of work in flight there. Takes no memory that `map` has not taken: where recording it needs more and
  /// there is none, the next operation records it first, and throws std::bad_alloc if it cannot. `written`: what of
  /// `range` was written, where that is not all of it.
  void written_through_map(ByteRange range, DeviceLease const& mapped, ByteRanges written = {});
  /// Instead of it, for a mapping through which nothing was written after all.
  void nothing_written_through_map() noexcept;
  /// Waits for the work on `range` and rolls back what has failed. `known` has been told to the caller that asked for
  /// that work, and is not told again; any other failure the next access raises.
  void resolve_known(ByteRange range, std::exception_ptr const& known) noexcept;
  /// For callers that cannot throw: the next access raises it.
  void fail_later(std::exception_ptr failure) noexcept;

  /// Writes to the file that it was made from what is newer than there, and returns when the file system has said that
  /// it has all of it. Nothing to do where the file is not to be written. Throws UnsupportedOperation for a buffer of
  /// no file, and IoError: the buffer has all of it still, and what of the file was to be written is undefined.
  void flush();

  void allocate(bool host, bool device);
  void free();
  void reset();
  /// As it was made but for its memory, which the next owner may use at once: it is ordered behind the work that is
  /// pending, and sees nothing of it, of its failures, or of what was counted and advised. Waits for nothing. With
  /// `zero` all of that memory is overwritten with zeros first, or when the last other holder lets go. False, with
  /// all memory let go, if some of it is held elsewhere: a lease, a mapping, or its owner, if it was wrapped.
  /// UnsupportedOperation while launches with the buffer are being captured.
  [[nodiscard]] bool recycle(bool zero);
  /// Has the memory it has now overwritten with zeros before that goes back to its pool: when the last holder that
  /// shares in the buffer is done with it, or when it lets go of the memory earlier.
  void zero_at_end();
  void resize(std::size_t bytes);
  /// What to do with copies that are leased: to throw, or to let them stay.
  enum class Leased { throws, stays };
  void release_device(Device* device, Leased leased = Leased::throws);
  void release_host();
  void discard();

  /// Gives advice for `range`, or takes it back. `place`: null for the default device. InvalidArgument for advice that
  /// is none.
  void advise(ByteRange range, Advice advice, Device* place, bool holds);
  [[nodiscard]] std::vector<AdvisedRange> advice() const;

  /// Says that the buffer is about to be used on `device`, so that its copy there goes last, or that it will not be for
  /// long, so that it goes first: until it is used there again. Hints; whether there is a copy does not matter.
  void hint_next_use(Device& device, bool use);
  /// Among buffers that could give device memory back those of lower priority do first. Thread-safe.
  [[nodiscard]] int priority() const noexcept;
  void set_priority(int priority) noexcept;

  /// Throws std::logic_error unless coherence and storage agree. For tests.
  void validate() const;

  [[nodiscard]] std::shared_ptr<void> hold() noexcept override;
  [[nodiscard]] bool gives_beside_users(MemoryPlace place) const noexcept override;
  [[nodiscard]] Evictable evictable(MemoryPlace place, std::span<const ByteRange> used) noexcept override;
  std::size_t evict(MemoryPlace place, std::span<const ByteRange> used) override;
  Relocation try_relocate(Queue& queue, std::size_t most_bytes) override;
  OptimizationStep try_optimize(Device& device, Optimization what, OptimizationTerms const& terms) override;

 private:
  friend Event use_on_device(Queue& queue, std::span<const Operand> operands, DeviceWork const& submit);
  friend Event copy_bytes(BufferWindow from, BufferWindow to, std::size_t element_bytes);
  friend void copy_pieces(BufferCore& from, BufferCore& to, std::span<const CopyPiece> pieces,
                          std::size_t element_bytes);
  using Guard = detail::BufferGuard;

  BufferCore(std::size_t bytes, BufferOptions&& options, std::shared_ptr<detail::BackingFile> file = nullptr);
  static std::shared_ptr<BufferCore> make(std::size_t bytes, BufferOptions&& options,
                                          std::shared_ptr<detail::BackingFile> file);
  void move_onto(Wrapped wrapped);
  /// The last of its owners is gone: handles, slices, leases, and work that holds them.
  void end_ownership() noexcept;
  /// The manager finds it by its name from now on, if it has one for that.
  void become_listed();
  /// Waits for those that hold it beside its owners to let go.
  void await_keepers() const noexcept;
  /// What of it is newer than its file is on its way there.
  void write_back_at_end() noexcept;
  /// One of the holders that keep it alive is gone.
  void let_go() noexcept;

  // Operations that may take device memory. Nothing, or false: others are in their way, nothing has changed, and the
  // context says for what to wait.
  static std::optional<Event> use_once(detail::AccessContext& context, Queue& queue, std::span<const Operand> operands,
                                       DeviceWork const& submit, detail::CopyChoice& choice,
                                       std::vector<detail::OperandTurn>& turns);
  /// What a copy lacks that throws an OutOfMemory: nothing where that is a failure of earlier work.
  enum class CopyLacks : unsigned char { nothing, room_beside_the_source, host_memory };
  static std::optional<Event> copy_once(detail::AccessContext& context, BufferWindow from, BufferWindow to,
                                        CopyLacks& lacks);
  /// `stays` holds the memory while the operation waits for what comes there.
  [[nodiscard]] std::optional<DeviceLease> lease_once(detail::AccessContext& context, Device& device, Queue* queue,
                                                      ByteRange range, Intent intent, DeviceLease& stays,
                                                      detail::CopyChoice& choice);
  [[nodiscard]] std::optional<DeviceLease> capture_once(detail::AccessContext& context, Queue& queue, ByteRange range,
                                                        std::span<const ByteRange> current, bool begins);
  std::optional<Event> prefetch_once(detail::AccessContext& context, Device& device, Queue* queue, ByteRange range,
                                     detail::CopyChoice& choice);
  /// While room is made, that part of this is in use.
  [[nodiscard]] auto use_of(ByteRange range) {
    return [this, range](auto& in_use) { in_use.add(manager(), *this, range); };
  }
  struct Resized;
  [[nodiscard]] bool resize_once(detail::AccessContext& context, std::size_t bytes, Resized& moved);

  /// The host storage for as long as this lives, for callers that do not give its address out: it may be spilled
  /// afterwards.
  struct HostUse {
    void* address = nullptr;
    DeviceLease lease;  ///< empty for no bytes at all
  };
  /// What other processes that share the memory are told of a host access.
  enum class Turn : unsigned char {
    as_asked,      ///< its intent, for as long as its lease
    may_write,     ///< it may also be written, by then
    ends_at_once,  ///< it comes behind their writes, and they need not wait for its end
  };
  [[nodiscard]] HostUse use_host(ByteRange range, Intent intent, Turn turn = Turn::as_asked);
  /// The same to write in it, which is counted before anything is written. Each that has succeeded is followed by
  /// `written_on_host` once everything is written: another thread, one that optimizes memory for example, may have
  /// copied the range to a device meanwhile, and that copy is out of date.
  [[nodiscard]] HostUse use_host_to_write(ByteRange range);
  void written_on_host(ByteRange range, HostUse const& use);
  void* host_slow(ByteRange range, Intent intent, bool looks);
  /// With `hold`, which is filled, the address is not given away.
  [[nodiscard]] bool host_once(detail::AccessContext& context, ByteRange range, Intent intent, Turn lasts,
                               DeviceLease* hold, void*& address);
  /// What `read` does where there is no host memory for the buffer. False, with nothing done, where it cannot: the
  /// bytes are nowhere, or on a device in the middle of work.
  [[nodiscard]] bool read_directly(ByteRange range, std::span<std::byte> target);
  /// Under UNIMEM_CHECK=2: the host reads `range`.
  void note_read(ByteRange range) const;
  void sync_to_device_slow(Device& device, ByteRange range);
  void sync_to_host_slow(ByteRange range);
  void bring_to_host_slow(std::span<const ByteRange> ranges);
  /// Whether the pieces went as one piece of work.
  static std::optional<bool> copied_at_once(detail::AccessContext& context, BufferCore& from, BufferCore& to,
                                            std::span<const CopyPiece> pieces);
  /// Whether a target of one piece reaches into a source of any, within one buffer.
  static bool overlap(std::span<const CopyPiece> pieces);
  static void copy_aside_first(BufferCore& buffer, std::span<const CopyPiece> pieces, std::size_t element_bytes);
  [[nodiscard]] DeviceLease map_to_read(ByteRange range);
  [[nodiscard]] DeviceLease map_to_write(ByteRange range, MapMode mode);
  [[nodiscard]] Device& find_default_device() const;
  [[nodiscard]] std::size_t evict_from_device(Device& device, std::span<const ByteRange> used);
  [[nodiscard]] std::size_t evict_from_host(Location location);
  /// Of host memory that comes in parts, one.
  [[nodiscard]] std::size_t evict_part_of_host(std::span<const ByteRange> used);
  [[nodiscard]] BufferState state_by_looking() const noexcept;
  void resolve_first(std::string_view operation, ByteRange range);
  /// Waits for the work on `range`; throws what has failed of it.
  void resolve_now(ByteRange range);
  /// Whether filling `range` with `pattern` is a device's business, and whose.
  [[nodiscard]] Device* device_to_fill(ByteRange range, std::size_t pattern_bytes);

  detail::PublishedState published_;
  mutable std::atomic<Device*> default_device_{nullptr};
  std::unique_ptr<detail::BufferParts> parts_;
};

}  // namespace unimem
