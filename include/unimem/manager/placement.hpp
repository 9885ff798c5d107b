#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/links.hpp>
#include <unimem/manager/options.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

[[nodiscard]] UNIMEM_API std::string_view to_string(Placement placement) noexcept;
[[nodiscard]] UNIMEM_API std::string_view to_string(AccessPattern pattern) noexcept;

/// What some buffers were used for, all of them together; those of one name, say. Uses are counted where the library
/// takes part in them: a host read of bytes that are current there is not counted.
struct RecordedUse {
  std::uint64_t buffers = 0;  ///< how many, those that are gone included; 0: nothing is known
  std::uint64_t host_reads = 0;
  std::uint64_t host_writes = 0;
  std::uint64_t device_reads = 0;
  std::uint64_t device_writes = 0;
  std::uint64_t uploads = 0;  ///< copies to devices
  std::uint64_t uploaded_bytes = 0;
  std::uint64_t downloads = 0;  ///< copies back
  std::uint64_t downloaded_bytes = 0;
  double seconds_alive = 0;  ///< the sum of their lives

  [[nodiscard]] std::uint64_t host_uses() const noexcept { return host_reads + host_writes; }
  [[nodiscard]] std::uint64_t device_uses() const noexcept { return device_reads + device_writes; }
  [[nodiscard]] std::uint64_t copies() const noexcept { return uploads + downloads; }
  [[nodiscard]] std::uint64_t copied_bytes() const noexcept { return uploaded_bytes + downloaded_bytes; }

  RecordedUse& operator+=(RecordedUse const& other) noexcept;
  friend bool operator==(RecordedUse const&, RecordedUse const&) = default;
};

/// What is to be placed.
struct PlacementQuestion {
  std::size_t bytes = 0;
  Placement asked = Placement::automatic;
  AccessPattern access = AccessPattern::unknown;
};

/// What the machine can do for one buffer, and what that costs. The defaults are a device with memory of its own of
/// which nothing is known.
struct PlacementMachine {
  bool shares_host_memory = false;  ///< the device works in the host's own memory: there is nothing to copy
  bool has_unified_memory = false;  ///< it serves `Location::unified`
  bool can_pin = true;              ///< the system locks pages for this process
  std::size_t available_bytes = std::numeric_limits<std::size_t>::max();  ///< of the device's memory, now
  std::optional<Link> to_device{};                                        ///< nothing: not known, and not guessed
  std::optional<Link> to_host{};
  /// How fast the host copies into pinned blocks, which pageable memory needs and pinned memory does not. The default
  /// is what one core of a small virtual machine of 2026 was measured at.
  double host_copy_bytes_per_second = 18e9;
  /// How fast the system locks pages: the same machine. Paid once in a buffer's life, and not where a pool has locked
  /// pages at hand.
  double pin_bytes_per_second = 2.1e9;
};

/// Why a placement was chosen.
enum class PlacementRule : std::uint8_t {
  asked,            ///< by the user
  small,            ///< the table's row for less than 64 KiB
  medium,           ///< the table's row for 64 KiB to 16 MiB
  large,            ///< the table's row for more than 16 MiB
  read_only,        ///< the table's row for data that is read and not changed
  shared_memory,    ///< host and device have one memory
  scattered,        ///< large, used in no order, and the device has unified memory
  device_full,      ///< what is free there does not hold it
  never_on_device,  ///< no buffer of the name was ever used there, nor uploaded
  never_on_host,    ///< none was ever used by the host
  only_read,        ///< filled once, and read by devices again and again
  copied_often,     ///< between host and device: locked pages pay
  seldom_copied,    ///< so seldom that locked pages do not pay
};

/// Where something goes, and why. A plain value.
struct PlacementDecision {
  Placement asked = Placement::automatic;
  Placement placement = Placement::device_local;  ///< never `automatic`
  Location location = Location::device;           ///< what it comes to
  PlacementRule rule = PlacementRule::medium;
  /// What was chosen before the machine was asked whether it has such a thing; else the same as `placement`.
  Placement wanted = Placement::device_local;
  std::size_t bytes = 0;
  std::size_t available_bytes = 0;  ///< on the device at that moment
  double pageable_seconds = 0;      ///< copies of one such buffer by the model, from pageable memory; 0: not reckoned
  double pinned_seconds = 0;        ///< the same from pinned memory, with the pinning
  RecordedUse use{};                ///< what was known

  /// Whether the machine lacks what was wanted, so that something else serves.
  [[nodiscard]] bool degraded() const noexcept { return wanted != placement; }
  /// Whether recorded use decided, and not the table.
  [[nodiscard]] bool from_use() const noexcept { return rule >= PlacementRule::never_on_device; }

  /// One sentence for people, with the figures that decided.
  [[nodiscard]] UNIMEM_API std::string why() const;
};

/// What memory each placement stands for: `device_local`, `read_only_optimized` and `random_access_optimized` are
/// device memory; `host_pinned`, `write_only_optimized` and `streaming_optimized`, all of which the host fills or
/// empties again and again, are locked host memory; `host_accessible` is ordinary host memory, `unified` unified
/// memory. Every buffer is copied to the device that uses it wherever it is at home. Throws InvalidArgument for
/// `automatic`, which is no place.
[[nodiscard]] UNIMEM_API Location location_of(Placement placement);

/// What copies between host and device take by the links as they are known, all of them together.
struct CopySeconds {
  double pageable = 0;  ///< from and to ordinary host memory; 0 without links or copies
  double pinned = 0;    ///< from and to locked memory
};

/// By the model: pageable memory goes through pinned blocks, whose filling overlaps with the link but for the first.
[[nodiscard]] UNIMEM_API CopySeconds copy_seconds(RecordedUse const& use, PlacementMachine const& machine) noexcept;

/// The documented table, by size and access pattern alone: below 64 KiB host-pinned, up to 16 MiB and beyond
/// device-local, read-only data read-only-optimized. (The decision table of the UniversalCompute page; both boundaries
/// belong to the middle row.)
[[nodiscard]] UNIMEM_API Placement placement_by_table(std::size_t bytes, AccessPattern access) noexcept;

/// Where something should go, by what is known. A pure function. What the user asked for is taken as it is; else it is
/// what the table says unless something speaks against it, in this order: the device shares the host's memory; recorded
/// use (at least eight uses) says that one side never touches it, or that it is only read, or that the copies it causes
/// are worth locked pages or are not, over the links as they are known; it does not fit the device now. What the
/// machine does not have is then replaced by what comes nearest, and the decision says so: unified by host-pinned,
/// host-pinned by ordinary host memory. With nothing known it is the table. Throws InvalidArgument for a placement or
/// pattern that is none.
[[nodiscard]] UNIMEM_API PlacementDecision decide_placement(PlacementQuestion const& question,
                                                            PlacementMachine const& machine = {},
                                                            RecordedUse const& use = {});

/// What new buffers should ask for, by what they are; the rows of the table, as far as what was recorded does not speak
/// against them. None is `automatic`. (GetPlacementRecommendations of the UniversalCompute page.)
struct PlacementRecommendations {
  Placement small_buffers = Placement::host_pinned;
  Placement medium_buffers = Placement::device_local;
  Placement large_buffers = Placement::device_local;
  Placement frequently_accessed = Placement::host_pinned;  ///< by the host
  Placement read_only = Placement::read_only_optimized;
  std::vector<std::string>
      hints{};  ///< sentences: what deviates from the table and why, what is short, what is refused

  friend bool operator==(PlacementRecommendations const&, PlacementRecommendations const&) = default;
};

/// One line for each row, and one for each hint.
[[nodiscard]] UNIMEM_API std::string to_string(PlacementRecommendations const& recommendations);

/// What is known of the use of buffers, by the rows of the table.
struct UseBySize {
  RecordedUse small;
  RecordedUse medium;
  RecordedUse large;
};

/// The recommendations by what is known. A pure function; its hints say of each row that deviates why.
[[nodiscard]] UNIMEM_API PlacementRecommendations recommend_placements(PlacementMachine const& machine = {},
                                                                       UseBySize const& use = {});

}  // namespace unimem
