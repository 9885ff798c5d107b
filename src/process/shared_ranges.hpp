#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "process/shared_lock.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace unimem::detail {

/// Which bytes of shared memory which process has written last, and which one is being written to: the part of
/// coherence that several processes have in common. It lies in memory that all of them map.
///
/// There are two copies of it. A change is made in the one that is not in force, under a lock, and comes into force by
/// one store: a process that is killed at any instruction leaves one whole copy, without its change or with it.
///
/// Versions count changes. What is written is claimed before (`begin_write`), so that the bytes of a writer that was
/// killed are known to be lost. There is room for `most_ranges` ranges: beyond them, neighbours are told as one that
/// was written by anyone, which costs copies and loses nothing; claims and lost ranges are never joined.
///
/// Thread-safe and process-safe. Every function but `version` throws IoError, with the name of the memory, if what lies
/// there is not this (EBADMSG), or if another process has kept the lock for `patience` (ETIMEDOUT): it was stopped,
/// perhaps.
class SharedRanges {
 public:
  static constexpr std::size_t most_ranges = 128, most_holders = 1024;
  static constexpr std::chrono::milliseconds patience{10'000};

  /// A process that takes part, by number; 0: none.
  using Holder = std::uint32_t;
  struct Process {
    std::uint32_t pid = 0;
    std::uint64_t started = 0;  ///< by the system's count, since numbers of processes are given again
    friend bool operator==(Process const&, Process const&) = default;
  };

  /// How much memory it takes.
  [[nodiscard]] static std::size_t bytes() noexcept;
  /// In memory that is all zeros, for `size` bytes of contents, which nobody has written.
  static SharedRanges make(std::span<std::byte> memory, std::size_t size, std::string name);
  static SharedRanges attach(std::span<std::byte> memory, std::size_t size, std::string name);

  /// Another number: something has changed. A load.
  [[nodiscard]] std::uint64_t version() const noexcept;

  /// Nothing: there are `most_holders`.
  [[nodiscard]] std::optional<Holder> join(Process process);
  /// It takes no further part. What it was writing is lost: `killed` or not, it will not come.
  void leave(Holder holder);
  struct Participant {
    Holder holder = 0;
    Process process;
  };
  [[nodiscard]] std::vector<Participant> participants() const;

  /// Who is writing to a range.
  struct Claim {
    Holder holder = 0;
    ByteRange range;
    friend bool operator==(Claim const&, Claim const&) = default;
  };
  /// `self` is about to write to `range`. Returns, having changed nothing, the first claim of another process that is
  /// in the way. Throws InvalidArgument where that makes too many ranges that are being written to.
  [[nodiscard]] std::optional<Claim> begin_write(Holder self, ByteRange range);
  /// It has written them: for each `begin_write`, of the same range.
  void end_write(Holder self, ByteRange range);

  /// What a process has to know of what others did.
  struct Changes {
    std::uint64_t version = 0;  ///< to be asked for the next time
    ByteRanges written;         ///< by others
    ByteRanges lost;            ///< nobody has them: a writer was killed
    std::vector<Claim> claims;  ///< of others
  };
  [[nodiscard]] Changes changes(Holder self, std::uint64_t since) const;

  /// Throws std::logic_error unless ranges are in order and apart. For tests.
  void validate() const;

 private:
  struct Range {
    std::uint64_t begin, end;
    std::uint64_t version;  ///< of its latest write; 0: none
    Holder last;            ///< who made that one; 0: several, or nobody
    Holder writer;          ///< 0: none
    std::uint32_t writes;   ///< by that one, under way
    std::uint32_t lost;
  };
  struct Copy {
    std::atomic<std::uint64_t> version;
    std::uint32_t range_count;
    std::uint32_t holder_count;  ///< slots in use, of which some may be free again
    std::array<Range, most_ranges> ranges;
    struct Slot {
      std::uint64_t started;
      std::uint32_t pid;  ///< 0: free
      std::uint32_t unused;
    };
    std::array<Slot, most_holders> holders;
  };
  struct Memory {
    std::array<char, 8> magic;
    std::uint64_t layout;
    std::uint64_t size;
    SharedLock lock;
    std::atomic<std::uint32_t> in_force;  ///< 0 or 1
    std::array<Copy, 2> copies;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

  class Locked;
  class Change;

  SharedRanges(Memory& memory, std::string name) noexcept : memory_(&memory), name_(std::move(name)) {}
  [[noreturn]] void throw_damaged(char const* what) const;

  Memory* memory_;
  std::string name_;
};

}  // namespace unimem::detail
