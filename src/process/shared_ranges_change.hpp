#pragma once

#include "process/shared_ranges.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

namespace unimem::detail {

/// The lock, and what is in force.
class SharedRanges::Locked {
 public:
  explicit Locked(SharedRanges const& table, std::chrono::milliseconds longest = patience);
  Locked(Locked const&) = delete;
  Locked& operator=(Locked const&) = delete;
  ~Locked() { release(); }
  /// Once, and for good.
  void release() noexcept;

  [[nodiscard]] std::uint64_t version() const noexcept { return state_ >> Part::count; }
  /// They are in order, and inside; throws IoError if they are not.
  [[nodiscard]] std::span<Range const> ranges() const;
  [[nodiscard]] std::span<Claimed const> writes() const noexcept {
    return memory_.copies[copy(Part::writes)].writes.used();
  }
  [[nodiscard]] std::span<Claimed const> reads() const noexcept {
    return memory_.copies[copy(Part::reads)].reads.used();
  }
  [[nodiscard]] std::span<Slot const> slots() const noexcept {
    return memory_.copies[copy(Part::holders)].holders.used();
  }
  [[nodiscard]] Dying const& deaths() const noexcept { return memory_.copies[copy(Part::deaths)].deaths; }
  /// It is inside; throws IoError if it is not.
  [[nodiscard]] ByteRange range_of(Claimed const& claim) const;

  /// The first claim of another process than `self` that forbids this one.
  [[nodiscard]] std::optional<Claim> in_the_way(Holder self, ByteRange range, Claim::Kind kind) const;

  /// Others are told when the lock is released: they would only wait for it.
  void has_changed() noexcept { changed_ = true; }
  /// Which of the two copies of a part is in force.
  [[nodiscard]] unsigned copy(unsigned part) const noexcept { return static_cast<unsigned>(state_ >> part) & 1U; }
  [[nodiscard]] std::uint64_t state() const noexcept { return state_; }
  [[noreturn]] void throw_damaged(char const* what) const { table_.throw_damaged(what); }

 private:
  void check() const;

  SharedRanges const& table_;
  Memory& memory_;
  std::uint64_t state_ = 0;
  bool changed_ = false, released_ = false;
};

/// What is to come into force: of each part that is changed, the other copy, in which what is in use is copied before.
/// Its own memory has room for all of it: it allocates nothing, so that a claim can be ended whatever memory there is.
class SharedRanges::Change {
 public:
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): `before_` is written before it is read
  explicit Change(SharedRanges& table, std::chrono::milliseconds longest = patience)
      : locked_(table, longest), memory_(*table.memory_) {}

  [[nodiscard]] Locked const& now() const noexcept { return locked_; }
  [[nodiscard]] Writes& writes() { return copied(&Parts::writes, Part::writes); }
  [[nodiscard]] Reads& reads() { return copied(&Parts::reads, Part::reads); }
  [[nodiscard]] Holders& holders() { return copied(&Parts::holders, Part::holders); }

  /// Null: it is not there.
  template <class Claims>
  [[nodiscard]] static Claimed* find(Claims& claims, Holder self, ByteRange range) {
    auto const used = claims.used();
    auto const found =
        std::ranges::find_if(used, [&](Claimed const& one) { return one.holder == self && one.range() == range; });
    return found == used.end() ? nullptr : &*found;
  }

  /// Takes off those write claims of a process that have ended. What is lost by them is lost where no other write of
  /// that process goes on.
  void settle_writes(Holder holder);
  /// It takes no further part. False: it does not take part.
  bool drop(Holder holder);
  /// To be told, unless it ended in good order and nothing is lost with it: before it is dropped.
  void note_death(Holder holder);
  /// By what it has joined; {}: it does not take part.
  [[nodiscard]] Process process_of(Holder holder) const;

  /// A new version of `range`.
  void write_over(ByteRange range, Holder by) { write_over({range.begin, range.end, next_version(), by, 0}); }

  /// The last that is done: the lock is released then.
  void come_into_force();

 private:
  void lose(ByteRange range) { write_over({range.begin, range.end, next_version(), 0, 1}); }
  /// Its number is another's soon.
  void forget_writer(Holder holder);

  template <class T>
  T& copied(T Parts::* list, unsigned part) {
    auto const in_force = locked_.copy(part);
    T& next = memory_.copies[1 - in_force].*list;
    if (begins(part)) {
      next.count = 0;
      next.add((memory_.copies[in_force].*list).used());
    }
    return next;
  }
  /// Whether nothing of this part has changed before.
  [[nodiscard]] bool begins(unsigned part) noexcept {
    auto const bit = std::uint64_t{1} << part;
    bool const first = (changed_ & bit) == 0;
    changed_ |= bit;
    return first;
  }
  [[nodiscard]] std::uint64_t next_version() noexcept { return version_ = locked_.version() + 1; }
  [[nodiscard]] Ranges& next_ranges() noexcept { return memory_.copies[1 - locked_.copy(Part::ranges)].ranges; }

  /// The ranges as they are so far; the list that is to come into force is empty then.
  [[nodiscard]] std::span<Range const> take_ranges();
  void write_over(Range const& with);
  /// There is room for it; it may be one with that before it.
  void append(Range const& one);
  /// Has those two neighbours be one that make the shortest range. False: all are lost, or stand between such.
  bool join_closest();

  Locked locked_;
  Memory& memory_;
  std::uint64_t version_ = locked_.version();
  std::uint64_t changed_ = 0;                   ///< bits as in `Memory::state`
  std::array<Range, Ranges::capacity> before_;  ///< read where ranges are written over twice
};

}  // namespace unimem::detail
