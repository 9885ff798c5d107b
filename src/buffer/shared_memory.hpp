#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/pool/allocation.hpp>

#include "buffer/shared_book.hpp"
#include "core/fork.hpp"
#include "core/unique_fd.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "process/shared_ranges.hpp"

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {

/// Host memory that a buffer has in common with buffers of other processes, and the book in which all of them keep who
/// has written what of it, who is at it now, and what was lost with a process that was killed.
///
/// This process is one holder of it, from here to the destructor. Thread-safe, but for what tells of changes, which the
/// lock of the buffer guards. In a forked child the holder stays the parent, and the child only looks.
class SharedMemory {
 public:
  /// A block that stands for the memory in a pool, whose limits and statistics know nothing of segments.
  struct StandIn {
    Allocation block;
    std::shared_ptr<void const> pools;  ///< keeps whose block it is; goes last
    StandIn() = default;
    /// The block is not to be used any more: its pages go.
    StandIn(Allocation of, std::shared_ptr<void const> kept);
    StandIn(StandIn&&) = default;
    StandIn& operator=(StandIn&&) = delete;
    ~StandIn();
  };
  /// All of `bytes` zeros. `name`: of the buffer, for errors and /proc/PID/maps. Throws what Segment throws.
  [[nodiscard]] static std::shared_ptr<SharedMemory> make(std::string const& name, std::size_t bytes, StandIn stand_in);
  /// What another process made, by the descriptors that it has offered, of that many bytes. `from`: whose,
  /// for errors. Nothing is copied, and no page of it touched. Throws IoError unless they are what they should be.
  [[nodiscard]] static std::shared_ptr<SharedMemory> attach(std::string const& name, std::vector<UniqueFd> descriptors,
                                                            std::size_t bytes, std::string const& from);

  SharedMemory(SharedMemory const&) = delete;
  SharedMemory& operator=(SharedMemory const&) = delete;
  ~SharedMemory();

  [[nodiscard]] std::byte* data() const noexcept { return contents_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  [[nodiscard]] std::string const& name() const noexcept { return name_; }
  /// Of the files that it is made of, as long as there are any.
  struct Identity {
    ::dev_t device = 0;
    ::ino_t contents = 0, book = 0;
    friend auto operator<=>(Identity const&, Identity const&) = default;
  };
  [[nodiscard]] Identity const& identity() const noexcept { return identity_; }
  /// Nothing: they are no such memory's.
  [[nodiscard]] static std::optional<Identity> identity_of(std::span<UniqueFd const> descriptors) noexcept;
  /// Other processes get it by that key, with `bytes` to say what it is, until this process is no holder any more, or
  /// it is withdrawn. Throws IoError where no more descriptors may be open, and what Peers throws.
  void offer(Peers::Key key, std::string bytes);

  /// Copies of them, for whoever is to hold it, too. Throws IoError where no more may be open.
  [[nodiscard]] std::vector<UniqueFd> descriptors() const;

  enum class Access : bool { reads, writes };
  /// What became of what was to be written.
  using Outcome = SharedRanges::Outcome;
  using Claim = SharedRanges::Claim;
  /// This process is at `range` from now on, until `end`. Returns, having changed nothing, what of another process is
  /// in the way. Throws what SharedRanges throws.
  [[nodiscard]] std::optional<Claim> begin(ByteRange range, Access access);
  void end(ByteRange range, Access access, Outcome outcome);
  /// What could not be ended in time, as the book's lock was kept by a process that is stopped, say, is ended with the
  /// next operation that looks for changes. Throws std::bad_alloc.
  void end_later(ByteRange range, Access access, Outcome outcome);
  /// Throws what `end` throws: it stays to be ended then.
  void end_what_is_due();
  /// Returns once that claim may be gone, or after a short while. What is claimed by a process that has ended is lost
  /// from then on.
  void wait_for(Claim const& claim, std::uint32_t seen);
  /// Returns once there is another number than `seen`, or after a short while.
  void wait_for_change(std::uint32_t seen) const noexcept;
  /// Another number: something has changed, a claim has gone perhaps.
  [[nodiscard]] std::uint32_t change_count() const noexcept { return book_->ranges().change_count(); }

  using Changes = SharedRanges::Changes;
  /// What other processes did since the last ones that were noted, and all that is lost. Of what this process is just
  /// writing nothing is told.
  [[nodiscard]] Changes changes() const { return book_->ranges().changes(book_->self(), seen_); }
  void have_noted(Changes const& found) noexcept;
  /// Whether something was written or lost since.
  [[nodiscard]] bool has_news() const noexcept { return book_->ranges().version() != seen_; }
  /// Whether `changes` may have anything to tell, or something is due to be ended.
  [[nodiscard]] bool changed() const noexcept {
    return loses_ || has_news() || has_due_.load(std::memory_order_relaxed);
  }

  /// The processes that hold it.
  [[nodiscard]] std::vector<SharedRanges::Participant> participants() const { return book_->ranges().participants(); }

 private:
  SharedMemory(std::string name, std::size_t bytes, Segment contents, Segment book_memory, SharedRanges book,
               StandIn stand_in);

  MadeHere const made_{};
  std::string const name_;
  std::size_t const bytes_;
  StandIn stand_in_;
  Segment const contents_;
  std::shared_ptr<SharedBook> const book_;
  Identity const identity_;
  std::mutex offers_mutex_;
  std::vector<std::pair<Peers::Key, Peers::Number>> offers_;
  struct Due {
    ByteRange range;
    Access access = Access::reads;
    Outcome outcome = Outcome::untouched;
  };
  std::mutex due_mutex_;
  std::vector<Due> due_;
  std::atomic<bool> has_due_{false};
  /// When it was last looked whether who is in the way lives.
  /// Relaxed: about when.
  std::atomic<std::chrono::steady_clock::duration> looked_{};
  std::uint64_t seen_;
  bool loses_ = true;  ///< something is lost, perhaps
};

/// One access of this process to shared memory, as other processes know of it: none of theirs to the same bytes begins
/// until it ends, unless both read.
class SharedTurn {
 public:
  using Access = SharedMemory::Access;
  using Outcome = SharedMemory::Outcome;

  SharedTurn(std::shared_ptr<SharedMemory> memory, ByteRange range, Access access) noexcept
      : memory_(std::move(memory)), range_(range), access_(access) {}
  SharedTurn(SharedTurn const&) = delete;
  SharedTurn& operator=(SharedTurn const&) = delete;
  ~SharedTurn();

  /// As SharedMemory's: nothing if it has begun.
  [[nodiscard]] std::optional<SharedMemory::Claim> begin() {
    auto const claim = memory_->begin(range_, access_);
    has_begun_ = !claim;
    return claim;
  }
  [[nodiscard]] SharedMemory const& memory() const noexcept { return *memory_; }
  [[nodiscard]] bool is_at(std::shared_ptr<SharedMemory> const& memory) const noexcept { return memory_ == memory; }
  [[nodiscard]] bool writes() const noexcept { return access_ == Access::writes; }
  [[nodiscard]] ByteRange range() const noexcept { return range_; }
  /// What is to be told of a write when it ends; until this is said, that nothing was written.
  void ends_as(Outcome outcome) noexcept { outcome_ = outcome; }

 private:
  void end_later(std::exception const& error) noexcept;

  MadeHere const made_{};
  std::shared_ptr<SharedMemory> memory_;
  ByteRange range_;
  Access access_;
  bool has_begun_ = false;
  Outcome outcome_ = Outcome::untouched;
};

/// Null where the buffer is not shared with other processes.
using HeldTurn = std::shared_ptr<SharedTurn>;

}  // namespace unimem::detail
