#pragma once

#include <unimem/core/name.hpp>
#include <unimem/device/event.hpp>

#include "core/fork.hpp"
#include "core/unique_fd.hpp"
#include "pool/block.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace unimem::detail {

class PoolCore;

/// Writes what all pools of the process hand out and take back to the file that `UNIMEM_LOG` names: the columns of
/// RMM's logging adaptor, so that its replay reads it, and ours after them (`Device,Location,Name,Capacity,Event`).
///
/// That replay (`REPLAY_BENCH`, `utilities/log_parser.hpp` of RMM's benchmarks) finds its columns by their names in the
/// first line and ignores others; a comma within quotes ends no field, but a line break ends the line even there, so
/// that none is written. It knows the actions `allocate` and `free`, since RMM's pull request 988 of March 2022
/// `allocate failure` too; one that is older refuses a log in which memory was refused.
///
/// A pointer of the log is the address of a block's descriptor: it is the same as long as the block lives and no
/// other's, also where memory has no address or two devices give the same one. The stream is the id of the queue a
/// block was asked for, or of the event it was released with, and 0 for the host.
///
/// A release is written before it happens and an allocation after, so that no block is live twice in the log. Lines are
/// kept in memory until there are many, or the process's exit handlers run; after that each is written at once. What a
/// process that is killed had kept is lost. A child that is forked does not record, since whose lines they are could
/// not be told, unless `%p` in the name gives it a file of its own: then it has a recorder of its own, which writes
/// each line at once, as most children leave without their exit handlers.
///
/// A file is one process's (`claim_file`). One that cannot be had or written is told to the log of the library, once,
/// and ends the recording, as no caller that allocates could do anything about it. Thread-safe.
class AllocationRecorder {
 public:
  /// The one of the process, made by the first call; null if `UNIMEM_LOG` is not set, its file cannot be written, or it
  /// is an ancestor's. To be asked once by every pool: a recorder stays for ever. Throws std::bad_alloc.
  [[nodiscard]] static AllocationRecorder* of_process();

  AllocationRecorder(UniqueFd file, std::string path, bool writes_at_once = false);
  AllocationRecorder(AllocationRecorder const&) = delete;
  AllocationRecorder& operator=(AllocationRecorder const&) = delete;

  /// A block that was just taken for `bytes` bytes; `queue` 0: for the host.
  void allocated(Block const& block, std::size_t bytes, std::uint64_t queue) noexcept;
  /// There was no memory for so many.
  void failed(PoolCore const& pool, std::size_t bytes, std::uint64_t queue, Name name) noexcept;
  /// A block that is about to be given back.
  void released(Block const& block, Event last_use) noexcept;

  /// At the start of a forked child: it has no other thread, and the lock is left as it is.
  void abandon_file() noexcept { file_ = {}; }

 private:
  struct Line {
    std::string_view action;
    PoolCore const& pool;
    Block const* block;  ///< null: there is none
    std::size_t bytes;
    std::uint64_t stream;
    Name name;
    Event event{};
  };

  // All of these with the lock.
  void add(Line const& line);
  /// Writes what is kept, and ends the recording if that fails.
  void flush() noexcept;
  void end(std::string_view reason) noexcept;

  void at_exit() noexcept;

  MadeHere const made_{};
  std::mutex mutex_;
  UniqueFd file_;  ///< none once the recording has ended
  std::string const path_;
  std::string kept_;
  bool at_once_;                                         ///< what is kept now would not be written later
  std::unordered_map<Block const*, std::size_t> sizes_;  ///< asked for, of what is live
};

}  // namespace unimem::detail
