#pragma once

#include <unimem/coherence/intent.hpp>
#include <unimem/coherence/state.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace unimem {

/// A place of one buffer, by index: 0 is the host, every device and every file that has been added gets the next one.
using Place = std::uint32_t;
inline constexpr Place host_place = 0;

/// One step of a plan: bring `range` from `from` to `to`.
struct PlannedCopy {
  Place from = host_place;
  Place to = host_place;
  ByteRange range;
  bool fence = false;  ///< the two places share storage: order the work, move nothing

  friend bool operator==(PlannedCopy const&, PlannedCopy const&) = default;
};

/// What has to happen before an access, a mark or a release may go ahead. Pure data: the owner carries the copies out
/// and then commits. Dropping a plan changes nothing. A plan with `lost` or `conflict` has no copies and is refused by
/// `commit`.
struct Plan {
  enum class Kind : std::uint8_t { access, mark, release };
  /// An unsynchronized write that a mark runs into: where it happened, and all of what was written there in one piece.
  struct Conflict {
    Place place = host_place;
    ByteRange range;

    friend bool operator==(Conflict const&, Conflict const&) = default;
  };

  Kind kind = Kind::access;
  Place place = host_place;
  ByteRange range;
  Intent intent = Intent::read;
  ByteRanges parts;  ///< of a mark: the bytes of `range` that were written; empty for all of them
  std::vector<PlannedCopy>
      copies;                     ///< all to one place, ascending and apart; no byte travels that the source has stale
  std::optional<ByteRange> lost;  ///< the first bytes to be read that are valid nowhere any more
  std::optional<Conflict> conflict;  ///< the first write that forbids a mark
  bool overrules = false;            ///< a mark that covers every unsynchronized byte of the other side, and wins
};

/// The estimated seconds of one copy of `bytes` from one place to another. Asked only where there is a choice: between
/// two sources, and whether two ranges are cheaper copied as one. Must be callable, pure, and not decrease with
/// `bytes`.
using CopyCost = std::function<double(Place from, Place to, std::size_t bytes)>;

/// Which bytes of one buffer are up to date where, and what has to be copied before an access.
///
/// Two range sets per place tell everything: `valid` (holds the current bytes) and `written` (written there and not
/// yet seen by the other side, the host with the files being one side and all devices together the other). A read
/// copies what its place lacks; a write makes its range valid there and stale everywhere else. The six documented
/// states are a projection, in which what a file holds counts as the host's. Invariant, the promise the library rests
/// on: once there is data, every byte is valid in at least one place or is listed as lost.
///
/// The first access or mark adopts what lies at its place as the data: its contents are undefined, but from then on
/// the same wherever they are read. A third set, `held`, remembers what the storage of a place ever received, so that a
/// mark can tell a stale byte, which may have been written over, from one that never meant anything.
///
/// Places may share storage (a CPU device and the host). They keep sets of their own, so that states move as if they
/// did not, but whatever comes from a sharing place is a fence, and whatever ruins the bytes of one ruins those of
/// both.
///
/// Pure: no memory, no queue, no clock. Costs come in as a function, so the same code is model-checked byte by byte.
/// Not thread-safe; its owner locks. Every mutation has the strong exception guarantee. A place or range that the
/// buffer does not have is `InvalidArgument`; a call that its owner can only make by mistake is std::logic_error.
class UNIMEM_API Coherence {
 public:
  /// What `roll_back` needs to take one committed plan back. Move it, keep it, drop it.
  struct Undo {
    /// One place's sets as they were, cut to the changed bytes.
    struct Before {
      Place place = host_place;
      ByteRanges valid;
      ByteRanges written;
      ByteRanges held;
    };
    std::uint64_t data = 0;    ///< which data it was done to: `discard()` begins another
    Place place = host_place;  ///< where the operation wrote
    ByteRanges touched;        ///< bytes there that it wrote or copied in: undefined if it failed
    ByteRanges changed;        ///< bytes of which the plan changed anything, anywhere; a fence changes without touching
    bool adopted = false;      ///< the plan was the first to touch the buffer
    bool rewrite = false;      ///< what the place alone had was written there again: that changed nothing
    std::vector<Before> before;  ///< the places that knew anything of the changed bytes
  };

  /// A buffer of `bytes` bytes, known to the host only, without storage or data.
  explicit Coherence(std::size_t bytes);

  /// Adds a device. `shares_with` names an earlier place whose storage it uses (a CPU device and the host): copies
  /// between the two become fences. Returns its index.
  Place add_device(std::optional<Place> shares_with = {});

  /// Adds a file, with storage of its own on the host's side: what moves between the two changes no state, and a write
  /// on the host waits to be seen by a device as long as either has it. Returns its index.
  Place add_file();

  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t place_count() const noexcept { return places_.size(); }

  /// Storage came into being at `place`, which has none (std::logic_error). Its contents mean nothing until an access,
  /// a copy or a mark.
  void add_storage(Place place);

  /// Storage at `place` goes away; std::logic_error if there is none. What only it held becomes lost: carry out
  /// `plan_release` first to save it. A place that shares storage counts as a place of its own here too.
  void remove_storage(Place place);
  /// The same of a part of it: the rest stays.
  void remove_storage(Place place, ByteRange part);

  [[nodiscard]] bool has_storage(Place place) const { return at(place).storage; }
  [[nodiscard]] bool shares_storage(Place a, Place b) const;

  /// What an access to `range` at `place` needs. The storage need not exist yet, but must when the plan is committed.
  /// Every missing byte comes from the cheapest place that has it, a place that shares storage before all others, the
  /// lowest index among equals. Two copies become one, across a gap too, when a source holds everything between them
  /// and one command is not dearer.
  [[nodiscard]] Plan plan_access(Place place, ByteRange range, Intent intent, CopyCost const& cost) const;

  /// What declaring "`range` was written at `place`, behind the library's back" needs. Bytes the place never held are
  /// brought in first, so that garbage never becomes the truth; bytes it held are never copied over. Bytes another
  /// place wrote and this one has not seen are a conflict, unless the mark covers all of them (then it overrules). Lost
  /// bytes are taken as written. Places that share storage see each other's writes.
  [[nodiscard]] Plan plan_mark(Place place, ByteRange range, CopyCost const& cost) const;
  /// The same of several ranges that were written as one, at least one.
  [[nodiscard]] Plan plan_mark(Place place, ByteRanges const& ranges, CopyCost const& cost) const;

  /// What must be saved to `to`, another place, before the storage of `place` may go: the bytes valid nowhere else, or,
  /// if the two share storage or are both on the host's side, all that `to` is not known to hold.
  [[nodiscard]] Plan plan_release(Place place, Place to, CopyCost const& cost) const {
    return plan_release(place, to, whole(), cost);
  }
  /// The same for a part of it.
  [[nodiscard]] Plan plan_release(Place place, Place to, ByteRange part, CopyCost const& cost) const;

  /// Records that a plan was carried out. It must have been made from this very state, storage that was added since
  /// aside. Throws std::logic_error if the plan has lost bytes or a conflict, if a place it needs has no storage
  /// (without bytes none is needed), or if it shows that the state was another one.
  Undo commit(Plan const& plan);

  /// The same of what is certain, and not going to be taken back.
  void commit_certain(Plan const& plan);

  /// The part of `commit` that may fail, for work that cannot be called back once it is submitted: throws what `commit`
  /// throws, and changes nothing yet. As many plans as `together` says may be prepared before the first is recorded, if
  /// all of them are writes at one place, or of parts that do not overlap.
  [[nodiscard]] Undo prepare(Plan const& plan, std::size_t together = 1);

  /// The rest of it. Since it was prepared nothing was committed but what was prepared together with it.
  void record(Plan const& plan, Undo const& undo) noexcept;

  /// Whether writing `range` at `place` changes no set: the place alone has the bytes, and all of them as written
  /// there.
  [[nodiscard]] bool is_rewrite(Place place, ByteRange range) const noexcept;
  /// What takes such a write back, of the data of that number.
  [[nodiscard]] static Undo undo_of_rewrite(Place place, ByteRange range, std::uint64_t data);
  /// Which data it is: `discard()` begins another.
  [[nodiscard]] std::uint64_t data() const noexcept { return data_; }

  /// Whether `commit` would take the plan now. For work that is to be recorded anew after other work was taken back.
  [[nodiscard]] bool can_commit(Plan const& plan) const { return refusal_of(plan) == nullptr; }

  /// Takes a committed plan back because its work failed. Its place no longer holds the bytes it wrote or copied in;
  /// all other places have again what they had before, unless their storage is gone or was written over since, and what
  /// is then valid nowhere is lost. Undo in reverse order of commits: whatever was committed to those bytes since must
  /// have been taken back. What was done to data that has been discarded since needs no taking back, and nothing
  /// happens.
  void roll_back(Undo const& undo);

  /// The bytes of `range` are no more, wherever they were, whatever was to be taken back of them: lost until they are
  /// written. Nothing where there is no data.
  void lose(ByteRange range);

  /// Forgets the data, everywhere, without saving it. Storage stays.
  void discard() noexcept;

  /// The state, from the sets: usually a few comparisons, at worst one pass over the devices' ranges, once after each
  /// change. Lost bytes are left out of the picture; when nothing else is left, the buffer is uninitialized.
  [[nodiscard]] BufferState state() const {
    if (!state_) state_ = projection();
    return *state_;
  }

  [[nodiscard]] ByteRanges const& valid(Place place) const { return at(place).valid; }
  [[nodiscard]] ByteRanges const& written(Place place) const { return at(place).written; }
  [[nodiscard]] ByteRanges const& lost() const noexcept { return lost_; }
  /// Whether there is data at all: some access or mark, even of an empty range, was committed since construction or
  /// `discard()`.
  [[nodiscard]] bool has_data() const noexcept { return has_data_; }

  /// Throws std::logic_error unless every invariant holds. For tests and debug builds.
  void validate() const;

 private:
  struct PlaceState {
    bool storage = false;
    bool on_host_side = false;
    Place storage_group = host_place;  ///< the earliest place with the same storage: itself, or the one it shares with
    ByteRanges valid;
    ByteRanges written;  ///< of the devices' sets no two overlap: a later writer takes the bytes over
    ByteRanges held;     ///< was valid here at some time since the storage came: perhaps stale, but never garbage
  };

  [[nodiscard]] PlaceState const& at(Place place) const {
    if (place >= places_.size()) refuse(place);
    return places_[place];
  }
  [[noreturn]] void refuse(Place place) const;
  [[nodiscard]] ByteRange whole() const noexcept { return {0, bytes_}; }
  void require_inside(ByteRange range) const;
  [[nodiscard]] BufferState projection() const;

  [[nodiscard]] Plan plan_mark(Plan plan, ByteRanges const& marked, CopyCost const& cost) const;
  void plan_copies(Plan& plan, ByteRange missing, CopyCost const& cost) const;
  [[nodiscard]] std::optional<PlannedCopy> cheapest_copy(Place to, ByteRange range, CopyCost const& cost) const;
  void join_copies(Plan& plan, CopyCost const& cost) const;
  [[nodiscard]] std::optional<PlannedCopy> joined(PlannedCopy const& left, PlannedCopy const& right, Plan::Kind kind,
                                                  CopyCost const& cost) const;
  [[nodiscard]] ByteRanges sole_bytes(Place place) const;
  void remove_bytes(Place place, ByteRange part);

  [[nodiscard]] char const* refusal_of(Plan const& plan) const;
  void require_possible(Plan const& plan) const;
  [[nodiscard]] bool adopts(Plan const& plan) const noexcept;
  [[nodiscard]] Undo undo_for(Plan const& plan) const;
  [[nodiscard]] bool is_rewrite(Plan const& plan) const noexcept;
  void roll_back_rewrite(Undo const& undo);
  void make_room_for(Plan const& plan, std::size_t times);
  void record_copy(PlannedCopy const& copy);
  void record_write(Place place, ByteRange range);
  [[nodiscard]] bool on_one_side(Place a, Place b) const { return places_[a].on_host_side == places_[b].on_host_side; }
  static void record_waiting(std::vector<PlaceState>& places, Place writer, ByteRanges waiting);
  void forget_data() noexcept;
  void validate_in_debug() const;

  std::size_t bytes_;
  std::uint64_t data_ = 0;  ///< how often data was discarded, so that an undo can tell whether its own still is there
  bool has_data_ = false;
  bool discarded_ = false;  ///< why there is no data, if there is none; forgotten with the last storage
  std::vector<PlaceState> places_;
  ByteRanges lost_;
  mutable std::optional<BufferState> state_;  ///< of what is above, once it has been asked for
};

}  // namespace unimem
