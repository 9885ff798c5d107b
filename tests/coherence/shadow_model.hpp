#pragma once

#include "coherence/coherence.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::testing {

/// `Coherence` did something that the model would not.
class Violation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Every byte of `range`.
[[nodiscard]] inline auto bytes_of(ByteRange range) {
  return std::views::iota(range.begin, range.end);
}

/// Carries out every operation on a `Coherence` and, byte by byte, on an obvious model of the same buffer, and throws
/// `Violation` at the first difference.
///
/// The model keeps flags per byte and place where `Coherence` keeps ranges, and real contents beside them: every
/// storage is an array that starts as garbage, copies move what the plan says, writers write, failures ruin. What the
/// flags call valid must equal the truth; what a reader finds must too. A cell stands for one byte but is wider, and
/// everything ever put into one is unique, so that a stale or garbage byte is never right by chance.
class ShadowModel {
 public:
  static constexpr std::size_t max_places = 4;
  using Cell = std::uint32_t;
  using Bytes = std::vector<bool>;  ///< a set of bytes, one flag each

  /// What one byte is, and where.
  struct Standing {
    enum class Waiting : std::uint8_t { no, for_device, for_host };

    Cell truth = 0;
    std::array<bool, max_places> valid{};
    std::array<bool, max_places> held{};
    Waiting waiting = Waiting::no;
    bool lost = false;
  };

  /// An operation that was committed and may yet fail.
  struct Started {
    Coherence::Undo undo;
    Place place = host_place;  ///< where it wrote
    Bytes changed;             ///< the bytes of which it changed anything
    Bytes touched;             ///< the bytes at `place` that it wrote or copied in
    bool adopted = false;
    std::vector<Standing> before;
    unsigned data = 0;    ///< to which data it was done
    unsigned memory = 0;  ///< which memory lay behind `place`
  };

  /// How often what happened, so that a test can tell that the interesting things did.
  using Tally = std::map<std::string_view, std::size_t>;

  /// A place beside the host: a device, as for `Coherence::add_device`, or a file.
  struct Added {
    std::optional<Place> shares_with{};
    bool file = false;
  };

  ShadowModel(std::size_t bytes, std::vector<Added> const& added, CopyCost cost);

  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_.size(); }
  [[nodiscard]] Place place_count() const noexcept { return static_cast<Place>(groups_.size()); }
  [[nodiscard]] bool has_storage(Place place) const { return storage_.at(place); }

  /// Whether an operation with `range` anywhere would touch or look at what `started` changed.
  [[nodiscard]] bool overlaps(Started const& started, ByteRange range) const;

  /// The operations give the storage they need to places that lack it, between the plan and the commit. They return
  /// nothing where `Coherence` refused, which is checked to be right.
  std::optional<Started> access(Place place, ByteRange range, Intent intent);
  /// What the user wrote behind the library's back is written first, wherever the place holds the bytes.
  std::optional<Started> mark(Place place, ByteRange range);
  std::optional<Started> mark(Place place, ByteRanges const& ranges);  ///< at least one
  std::optional<Started> release(Place place, Place to);
  std::optional<Started> release(Place place, Place to, ByteRange part);

  /// Ruins what the operation wrote, and takes it back. What was started later and `overlaps` it must have failed
  /// before.
  void fail(Started const& started);

  void add_storage(Place place);
  void remove_storage(Place place) { remove_storage(place, {0, size_bytes()}, true); }
  /// Of a part of it: the storage itself stays.
  void remove_part(Place place, ByteRange part) { remove_storage(place, part, false); }
  void discard();
  /// Somebody else has ruined them, in every storage.
  void lose(ByteRange range);

  /// Equal for two models that no sequence of operations can tell apart.
  [[nodiscard]] std::string fingerprint() const;

  /// What happened, added to `tally`.
  void count_in(Tally& tally) const;

 private:
  std::optional<Started> release(Place place, Place to, ByteRange part, Plan const& plan);
  void remove_storage(Place place, ByteRange part, bool all);
  [[nodiscard]] bool same_storage(Place a, Place b) const { return groups_[a] == groups_[b]; }
  [[nodiscard]] Cell& cell(Place place, std::size_t byte) { return contents_[groups_[place]][byte]; }
  [[nodiscard]] Cell const& cell(Place place, std::size_t byte) const { return contents_[groups_[place]][byte]; }
  [[nodiscard]] bool valid_in_storage(Place place, std::size_t byte) const;
  [[nodiscard]] bool held_in_storage(Place place, std::size_t byte) const;
  [[nodiscard]] bool valid_anywhere(std::size_t byte) const;
  [[nodiscard]] bool on_host_side(Place place) const { return place == host_place || files_[place]; }
  [[nodiscard]] bool valid_on_side(bool host, std::size_t byte) const;
  [[nodiscard]] Standing::Waiting waiting_of_writer(Place place) const;
  [[nodiscard]] BufferState state() const;

  void check_copies(Plan const& plan, Place to, Bytes const& wanted);
  void check_cost(Plan const& plan, Place to, Bytes const& wanted) const;
  void check_conflict(Plan const& plan, Bytes const& unseen, Bytes const& clash) const;
  void check_refusal(Plan const& plan);
  void check();

  std::optional<Started> mark(Place place, ByteRanges const& ranges, Plan const& plan);
  Started start(Plan const& plan, Place to, bool writes);
  void carry_out(Plan const& plan);
  void adopt(Place place);
  void record_write(Place place, std::size_t byte);
  void stop_waiting_where_gone(std::size_t byte);
  void count(std::string_view what) { ++tally_[what]; }

  Coherence subject_;
  CopyCost cost_;
  std::vector<Place> groups_;
  std::array<bool, max_places> files_{};
  std::array<std::vector<Cell>, max_places> contents_;  ///< by group
  std::array<bool, max_places> storage_{};
  std::array<unsigned, max_places> memories_{};  ///< by group, which one: the last place that shares it takes it along
  unsigned memories_made_ = 0;
  Cell next_cell_ = 1;
  std::vector<Standing> bytes_;
  unsigned data_ = 0;  ///< which one: discarding begins another
  bool has_data_ = false;
  bool discarded_ = false;
  Tally tally_;
};

}  // namespace unimem::testing
