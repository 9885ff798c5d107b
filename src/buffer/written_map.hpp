#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "core/stack.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// For UNIMEM_CHECK=2: which bytes of one buffer nothing has written since it last had no data. A read of such bytes is
/// reported to the log, each byte once.
///
/// Coherence does not know: the first access to a buffer makes all that lies there its data. A launch counts as having
/// written its `write()` operands from when it is submitted, and its `Fill` says at its end what it has left out. Reads
/// that were submitted in between are reported then, each with its place in the program.
///
/// Thread-safe, with a lock of its own: work that ends has not the buffer's. Under it nothing else is taken.
class WrittenMap {
 public:
  /// A launch that is to write all of a range and has not ended. Dropped, it has written all of it.
  class Fill {
   public:
    explicit Fill(ByteRange range) : range_(range), open_(range) {}
    [[nodiscard]] ByteRange range() const noexcept { return range_; }

   private:
    friend class WrittenMap;
    struct Reader {
      ByteRanges bytes;
      std::string how;
      ProgramPlace place;
    };
    ByteRange range_;
    ByteRanges open_;  ///< what nothing has written after it
    std::vector<Reader> readers_;
  };

  /// `name`: what reports call the buffer.
  WrittenMap(std::size_t bytes, std::string name);

  /// There is no data any more, in a buffer of that size.
  void forget(std::size_t bytes);
  /// All of `range` has been written, or is going to be by what has just been submitted.
  void wrote(ByteRange range);
  /// The buffer is of another size from now on.
  void resize(std::size_t before, std::size_t bytes);
  /// What has just been submitted writes `range` with a copy of `from`, which begins at `begin` there.
  void copied(ByteRange range, WrittenMap const& from, std::size_t begin);

  /// Of what `wrote` was said of: the launch will tell what is true of it.
  [[nodiscard]] std::shared_ptr<Fill> begin_fill(ByteRange range);
  /// It has ended, and not written `left`.
  void end_fill(Fill& fill, ByteRanges left);

  /// The caller reads `range`; `how` goes into the report: "by work on sim:0".
  void read(ByteRange range, std::string_view how);

  /// Whether no read can be reported any more until `forget`. One atomic load.
  [[nodiscard]] bool complete() const noexcept { return complete_.load(std::memory_order_acquire); }

 private:
  void publish();
  void report(ByteRanges const& bytes, std::string_view how, ProgramPlace const& place) const;

  std::string name_;
  mutable std::mutex mutex_;
  ByteRanges unwritten_;
  std::vector<std::weak_ptr<Fill>> fills_;
  std::atomic<bool> complete_{false};
};

}  // namespace unimem::detail
