#pragma once

#include <unimem/buffer/options.hpp>
#include <unimem/core/byte_ranges.hpp>

#include "buffer/host_writes.hpp"
#include "buffer/stale_views.hpp"
#include "buffer/written_map.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::detail {

class Replica;

/// What was written through a mapping of the host's memory: `parts` of `range`, or all of it where there are none.
struct MappedWrite {
  ByteRange range;
  ByteRanges parts;
};

/// What is known of writes to a buffer that its library did not make: what notices them, what mappings have said and is
/// not yet recorded, and what the checks of UNIMEM_CHECK keep.
///
/// Not thread-safe, but for `tracking`; the buffer's lock guards it.
class HostWatch {
 public:
  explicit HostWatch(Tracking tracking) noexcept : tracking_(tracking) {}

  /// What serves: small buffers and shared memory are not worth tracking by page. Thread-safe. Relaxed: a word alone.
  [[nodiscard]] Tracking tracking() const noexcept { return tracking_.load(std::memory_order_relaxed); }
  void track_by_access() noexcept { tracking_.store(Tracking::access, std::memory_order_relaxed); }
  /// Under UNIMEM_CHECK=2: begins to keep what has been written at all, and accesses to stale host bytes.
  void check_reads(std::size_t bytes, std::string name);

  /// Whether writes to the host's memory are noticed, as soon as there is any.
  [[nodiscard]] bool watches() const;
  /// Nor are they from now on: the memory comes in parts, and a look at all of it would have to bring all of them.
  void never_watch() noexcept { never_ = true; }
  /// What notices writes to host memory that serves for `size` bytes; null where only the library's own count. `name`:
  /// of the buffer, for reports. It may look at what this keeps, and goes before it.
  [[nodiscard]] std::unique_ptr<HostWrites> make(std::shared_ptr<Replica> const& memory, std::size_t size,
                                                 std::string name);
  /// Begins to notice what is written to host memory that has just come: no address of it was given away, so what this
  /// operation leaves there is known.
  void begin(std::unique_ptr<HostWrites> writes) noexcept;
  void end() noexcept { writes_.reset(); }
  /// Null: only what goes through the library counts.
  [[nodiscard]] HostWrites* writes() const noexcept { return writes_.get(); }

  /// What was written before this operation is on record: only then does what is remembered at its end hold no user's
  /// write.
  void collected() noexcept { collected_ = true; }
  /// An operation has ended; `coherence` tells which bytes are whose.
  void remember(Coherence const& coherence) {
    if (writes_ && std::exchange(collected_, false)) writes_->remember(coherence);
  }
  /// A plan is committed that writes, or a write is about to be submitted.
  void wrote(Plan const& plan);
  void wrote(ByteRange range) {
    if (written_map_) written_map_->wrote(range);
  }
  /// The data is no more: nothing has been written.
  void forget(std::size_t bytes) {
    if (written_map_) written_map_->forget(bytes);
  }
  /// Null unless UNIMEM_CHECK=2.
  [[nodiscard]] std::shared_ptr<WrittenMap> const& written_map() const noexcept { return written_map_; }
  [[nodiscard]] std::shared_ptr<StaleViews> stale_views() const noexcept {
    return checks_ ? checks_->stale_views : nullptr;
  }

  /// For complaints: what was declared last.
  void note(std::string_view what, ByteRange range);

  /// Host memory is about to be mapped to be written: makes room, so that saying what was written takes no memory.
  /// Throws std::bad_alloc, changing nothing.
  void expect_mapped_write();
  /// That mapping has said what it has to say.
  void mapped_write_ended() noexcept { --mapped_writes_; }
  /// What was written, into the room that was made before.
  void add_unrecorded(MappedWrite write) { unrecorded_.push_back(std::move(write)); }
  [[nodiscard]] std::vector<MappedWrite>& unrecorded() noexcept { return unrecorded_; }
  [[nodiscard]] std::vector<MappedWrite> const& unrecorded() const noexcept { return unrecorded_; }

 private:
  /// What is kept under UNIMEM_CHECK alone.
  struct Checks {
    std::string last_marks;                   ///< empty: nothing was declared before
    std::shared_ptr<StaleViews> stale_views;  ///< null unless UNIMEM_CHECK=2
  };
  [[nodiscard]] Checks& checks();

  std::atomic<Tracking> tracking_;
  bool collected_ = false;
  bool never_ = false;
  std::unique_ptr<Checks> checks_;  ///< null until there is something to keep
  std::unique_ptr<HostWrites> writes_;
  std::shared_ptr<WrittenMap> written_map_;
  std::vector<MappedWrite> unrecorded_;  ///< to the host's memory, without the memory to record it
  std::size_t mapped_writes_ = 0;        ///< mappings that may yet say what they have written, each with room for it
};

}  // namespace unimem::detail
