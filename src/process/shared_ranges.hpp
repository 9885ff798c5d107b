#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "process/shared_lock.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {

/// Which bytes of shared memory which process has written last, and which are being written to or read: the part of
/// coherence that several processes have in common. It lies in memory that all of them map.
///
/// There are two copies of each part of it. A change is made in those that are not in force, under a lock, and comes
/// into force by one store: a process that is killed at any instruction leaves a whole table, without its change or
/// with it.
///
/// Versions count writes. What is written is claimed before (`begin_write`), so that the bytes of a writer that was
/// killed are known to be lost; what is read may be claimed (`begin_read`), so that no other process writes there
/// meanwhile. A process's own claims never stand in its way. Beyond `most_ranges` ranges, neighbours are told as one
/// that was written by anyone, which costs copies and loses nothing; claims are exact, and what is lost is never told
/// of other bytes.
///
/// Thread-safe and process-safe. The child of a fork has its parent's number as a holder, and claims made by it are its
/// parent's: it joins anew before it takes part. Processes see one another's numbers (pids) as the system's /proc has
/// them: all of them live in one namespace of these.
///
/// Every function that is not noexcept throws IoError, with the name of the memory, if what lies there is not this
/// (EBADMSG), or if another process has kept the lock for `patience` (ETIMEDOUT): it was stopped, perhaps.
class SharedRanges {
 public:
  static constexpr std::size_t most_ranges = 128, most_holders = 1024, most_reads = 1024;
  /// Ranges that are being written to, and those that are lost, together.
  static constexpr std::size_t most_writes = 256;
  /// How many deaths are remembered, the latest.
  static constexpr std::size_t most_deaths = 128;
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
  /// In memory that is all zeros, for `size` bytes of contents, which no process has written.
  static SharedRanges make(std::span<std::byte> memory, std::size_t size, std::string name);
  static SharedRanges attach(std::span<std::byte> memory, std::size_t size, std::string name);

  /// Another number: something was written, or lost. A load.
  [[nodiscard]] std::uint64_t version() const noexcept;

  /// Another number after every change that has come into force: also of claims, and of who takes part. A load.
  [[nodiscard]] std::uint32_t change_count() const noexcept;
  /// Waits while `change_count()` is `seen`, for `longest` at most; may return earlier. A process that is killed
  /// between its change and its word of it wakes no other: whoever waits for a claim to go asks again now and then.
  void wait_for_change(std::uint32_t seen, std::chrono::milliseconds longest) const noexcept;

  /// Nothing: there are `most_holders`.
  [[nodiscard]] std::optional<Holder> join(Process process);
  /// It takes no further part. What it was writing is lost: `killed` or not, it will not come. What it was reading, it
  /// reads no more.
  void leave(Holder holder);
  /// It is about to end in good order, and may take part to the last.
  void note_end(Holder holder, std::chrono::milliseconds longest = patience);
  struct Participant {
    Holder holder = 0;
    Process process;
  };
  [[nodiscard]] std::vector<Participant> participants() const;

  [[nodiscard]] static Process this_process();
  /// The one of that number; nothing: none is alive. Throws IoError where the system does not say.
  [[nodiscard]] static std::optional<Process> process(std::uint32_t pid);
  /// False: it has ended, even if its parent has not asked how. Throws IoError where the system does not say.
  [[nodiscard]] static bool is_alive(Process process);
  /// Has every participant leave that is not alive. Returns those; of several processes that ask at once, one is told.
  std::vector<Participant> forget_dead();

  /// Of a process that ended as a participant: by a signal, say, and not in good order, or with claims to write.
  struct Death {
    Process process;
    std::size_t lost_bytes = 0;  ///< that it was writing
  };
  struct Deaths {
    std::uint64_t count = 0;     ///< of all that there have been
    std::vector<Death> since{};  ///< `most_deaths` of them at most
  };
  /// What any process has found by `forget_dead`, behind the first `seen` deaths.
  [[nodiscard]] Deaths deaths(std::uint64_t seen) const;

  /// What a process is about to do with a range.
  struct Claim {
    enum class Kind : std::uint8_t { write, read };
    Holder holder = 0;
    ByteRange range;
    Kind kind = Kind::write;
    friend bool operator==(Claim const&, Claim const&) = default;
  };
  /// `self` is about to read `range`. Returns, having changed nothing, the first write claim of another process that is
  /// in the way. Throws InvalidArgument for the `most_reads + 1`st claim, and for a range outside the contents.
  [[nodiscard]] std::optional<Claim> begin_read(Holder self, ByteRange range);
  /// It has read them: for each `begin_read`, of the same range. Of one that there is not, nothing.
  void end_read(Holder self, ByteRange range);
  /// `self` is about to write to `range`. Returns, having changed nothing, the first claim of another process that is
  /// in the way: to write, or else to read. Throws InvalidArgument where that makes more than `most_writes` ranges that
  /// are being written to or lost, unless a whole lost range is in it; and for a range outside the contents.
  [[nodiscard]] std::optional<Claim> begin_write(Holder self, ByteRange range);
  enum class Outcome : std::uint8_t {
    written,
    untouched,  ///< what is known of the range stays as it was
    lost,       ///< as if the writer had been killed, once its other writes that meet the range have ended
  };
  /// For each `begin_write`, of the same range. Of one that there is not, nothing.
  void end_write(Holder self, ByteRange range, Outcome outcome = Outcome::written);

  /// What a process has to know of what others did.
  struct Changes {
    std::uint64_t version = 0;  ///< to be asked for the next time
    ByteRanges written;         ///< by others; without what `self` is just writing, where none has since it began
    ByteRanges lost;            ///< no process has them: a writer was killed; without what `self` is just writing
    bool loses = false;         ///< something is lost, also where `self` is just writing
    std::vector<Claim> claims;  ///< of others, to write
  };
  [[nodiscard]] Changes changes(Holder self, std::uint64_t since) const;

  /// Who takes part, and what goes on, at one moment: for whoever looks without taking part.
  struct Situation {
    std::vector<Participant> participants;
    std::vector<Claim>
        claims;  ///< to write and to read; of a writer's that has ended and whose bytes are to be lost, none
    ByteRanges lost;
  };
  /// `longest`: for the lock, in place of `patience`.
  [[nodiscard]] Situation situation(std::chrono::milliseconds longest) const;

  /// Throws std::logic_error unless ranges are in order and apart, and claims of participants that may be there
  /// together. For tests.
  void validate() const;

 private:
  /// Ranges that nobody has written are not listed.
  struct Range {
    std::uint64_t begin, end;
    std::uint64_t version;  ///< of its latest write
    Holder last;            ///< who made that one; 0: several, or none that takes part
    std::uint32_t lost;
  };
  struct Claimed {
    std::uint64_t begin, end;
    Holder holder;
    std::uint32_t count : 31;  ///< how often
    std::uint32_t loses : 1;   ///< one of these writes has ended so; there may be none left of them then
    [[nodiscard]] ByteRange range() const noexcept { return {begin, end}; }
  };
  struct Slot {
    std::uint64_t started;
    std::uint32_t pid;  ///< 0: free
    std::uint32_t ends;
  };
  struct Dead {
    std::uint64_t started;
    std::uint64_t pid;
    std::uint64_t lost_bytes;
  };
  /// The one that died first is at `count % most_deaths` once there are more.
  struct Dying {
    std::uint64_t count;
    std::array<Dead, most_deaths> latest;
  };
  template <class T, std::size_t most>
  struct List {
    std::uint32_t count;
    std::uint32_t unused;
    std::array<T, most> all;
    static constexpr std::size_t capacity = most;

    [[nodiscard]] std::span<T const> used() const noexcept { return std::span(all).first(count); }
    [[nodiscard]] std::span<T> used() noexcept { return std::span(all).first(count); }
    void add(T const& one) noexcept { all[count++] = one; }
    void add(std::span<T const> several) noexcept {
      std::ranges::copy(several, all.begin() + count);
      count += static_cast<std::uint32_t>(several.size());
    }
    /// The last one takes its place.
    void remove(T& one) noexcept { one = all[--count]; }
  };
  /// Each of `most_writes` may be lost, and another range may stand between any two.
  using Ranges = List<Range, 2 * most_writes + 8>;
  using Writes = List<Claimed, most_writes>;
  using Reads = List<Claimed, most_reads>;
  using Holders = List<Slot, most_holders>;
  struct Parts {
    Ranges ranges;
    Writes writes;
    Reads reads;
    Holders holders;
    Dying deaths;
  };
  struct Copy : Parts {
    /// Has the copies lie half a page apart, beside whole ones: a processor takes a load for one of what was just
    /// stored if their addresses are alike in a page, and waits.
    std::array<std::byte, 4'096 + 2'048 - sizeof(Parts) % 4'096> apart;
  };
  /// Bits of `Memory::state`: which copy of each part is in force. The version is above them.
  struct Part {
    static constexpr unsigned ranges = 0, writes = 1, reads = 2, holders = 3, deaths = 4, count = 5;
  };
  // Made in memory that is all zeros.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
  struct Memory {
    std::array<char, 8> magic;
    std::uint64_t layout;
    std::uint64_t size;
    SharedLock lock;
    std::atomic<std::uint64_t> state;
    std::atomic<std::uint32_t> change_count;
    std::atomic<std::uint32_t> waiting;  ///< at least as many as wait: those killed at it are never taken off
    std::array<Copy, 2> copies;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

  class Locked;
  class Change;

  SharedRanges(Memory& memory, std::string name) noexcept : memory_(&memory), name_(std::move(name)) {}
  [[noreturn]] void throw_damaged(char const* what) const;
  void require_inside(ByteRange range) const;

  Memory* memory_;
  std::string name_;
};

}  // namespace unimem::detail
