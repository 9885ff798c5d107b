#include <unimem/manager/placement.hpp>

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace unimem {
namespace {

constexpr std::size_t medium_from = std::size_t{64} << 10;
constexpr std::size_t large_above = std::size_t{16} << 20;

/// Fewer uses than this are chance.
constexpr std::uint64_t least_uses = 8;

/// Locked pages are taken from all other programs for as long as a buffer lives: what they save must be at least this
/// part of that time.
constexpr double least_gain_of_life = 1e-4;

/// What of a staged copy cannot overlap: the first block is filled before anything goes over the link.
constexpr std::size_t staged_block = std::size_t{4} << 20;

constexpr std::array<std::string_view, 9> placement_names{
    "automatic",           "device_local",         "host_pinned",         "host_accessible",        "unified",
    "read_only_optimized", "write_only_optimized", "streaming_optimized", "random_access_optimized"};
constexpr std::array<std::string_view, 10> pattern_names{"unknown",    "sequential", "random",  "streaming",
                                                         "strided",    "gather",     "scatter", "read_only",
                                                         "write_only", "read_write"};

void check(PlacementQuestion const& question) {
  if (static_cast<std::size_t>(question.asked) >= placement_names.size()) {
    throw InvalidArgument("placement", fmt::format("{}", static_cast<unsigned>(question.asked)),
                          "one of the nine placements");
  }
  if (static_cast<std::size_t>(question.access) >= pattern_names.size()) {
    throw InvalidArgument("access", fmt::format("{}", static_cast<unsigned>(question.access)),
                          "one of the ten access patterns");
  }
}

bool in_no_order(AccessPattern access) noexcept {
  return access == AccessPattern::random || access == AccessPattern::gather || access == AccessPattern::scatter;
}

PlacementRule row_of(std::size_t bytes, AccessPattern access) noexcept {
  if (access == AccessPattern::read_only) return PlacementRule::read_only;
  if (bytes < medium_from) return PlacementRule::small;
  return bytes <= large_above ? PlacementRule::medium : PlacementRule::large;
}

/// What so many copies of so many bytes in one direction take.
CopySeconds copies_over(std::optional<Link> const& link, std::uint64_t copies, std::uint64_t bytes,
                        double host_rate) noexcept {
  if (!link || copies == 0) return {};
  auto const count = static_cast<double>(copies);
  auto const each = static_cast<double>(bytes) / count;
  auto const first = std::min(each, static_cast<double>(staged_block));
  auto const pinned = link->latency_seconds + each / link->bytes_per_second;
  // The first block is filled, then filling and sending overlap, and the slower of them counts.
  auto const pageable = link->latency_seconds + first / host_rate + first / link->bytes_per_second +
                        (each - first) / std::min(host_rate, link->bytes_per_second);
  return {count * pageable, count * pinned};
}

/// What recorded use has to say, if anything.
void consult(PlacementDecision& decision, PlacementMachine const& machine) {
  auto const& use = decision.use;
  if (use.buffers == 0 || use.host_uses() + use.device_uses() < least_uses) return;
  auto const choose = [&](Placement placement, PlacementRule rule) {
    decision.placement = placement;
    decision.rule = rule;
  };
  // What is uploaded is meant for a device, whether its uses there are known or not.
  if (use.device_uses() == 0 && use.uploads == 0) {
    return choose(Placement::host_accessible, PlacementRule::never_on_device);
  }
  if (use.host_uses() == 0) return choose(Placement::device_local, PlacementRule::never_on_host);
  bool const filled_once = use.host_writes <= use.buffers && use.device_writes == 0;
  bool const read_again = use.device_reads >= 2 * use.buffers;
  if (filled_once && read_again) return choose(Placement::read_only_optimized, PlacementRule::only_read);

  auto const all = copy_seconds(use, machine);
  auto const buffers = static_cast<double>(use.buffers);
  decision.pageable_seconds = all.pageable / buffers;
  decision.pinned_seconds = all.pinned / buffers + static_cast<double>(decision.bytes) / machine.pin_bytes_per_second;
  if (decision.pageable_seconds == 0) return;  // no copies, or no links to reckon them by
  auto const gain = decision.pageable_seconds - decision.pinned_seconds;
  auto const life = use.seconds_alive / buffers;
  if (gain > 0 && gain >= life * least_gain_of_life) {
    if (decision.placement != Placement::host_pinned) choose(Placement::host_pinned, PlacementRule::copied_often);
  } else if (decision.placement == Placement::host_pinned) {
    choose(Placement::device_local, PlacementRule::seldom_copied);
  }
}

/// Whether it takes device memory of its own at once.
bool on_device(Placement placement) noexcept {
  return location_of(placement) == Location::device;
}

/// What comes nearest on this machine.
Placement served(Placement wanted, PlacementMachine const& machine) {
  auto placement = wanted;
  if (location_of(placement) == Location::unified && !machine.has_unified_memory) placement = Placement::host_pinned;
  if (location_of(placement) == Location::pinned && !machine.can_pin) placement = Placement::host_accessible;
  return placement;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string those(RecordedUse const& use) {
  return use.buffers == 1 ? std::string("the one such buffer") : fmt::format("{} such buffers", use.buffers);
}

std::string reason(PlacementDecision const& decision) {
  auto const& use = decision.use;
  auto const size = format_size(decision.bytes);
  switch (decision.rule) {
    case PlacementRule::asked:
      return "it was asked for";
    case PlacementRule::small:
      return fmt::format("{} is less than 64 KiB", size);
    case PlacementRule::medium:
      return fmt::format("{} is from 64 KiB to 16 MiB", size);
    case PlacementRule::large:
      return fmt::format("{} is more than 16 MiB", size);
    case PlacementRule::read_only:
      return "it is said to be read and not changed";
    case PlacementRule::shared_memory:
      return "the device works in the host's memory, so that nothing is copied";
    case PlacementRule::scattered:
      return fmt::format("{} used in no order would be copied whole, and the device has unified memory", size);
    case PlacementRule::device_full:
      return fmt::format("{} does not fit the {} that are free on the device", size,
                         format_size(decision.available_bytes));
    case PlacementRule::never_on_device:
      return fmt::format("{} had {} uses by the host and none on a device", those(use), use.host_uses());
    case PlacementRule::never_on_host:
      return fmt::format("{} had {} uses on devices and none by the host", those(use), use.device_uses());
    case PlacementRule::only_read:
      return fmt::format("{} had {} reads and no writes on devices after at most one filling each", those(use),
                         use.device_reads);
    case PlacementRule::copied_often:
      return fmt::format(
          "what is copied for {} takes {} each from pageable memory and {} from pinned, the pinning included",
          those(use), seconds_text(decision.pageable_seconds), seconds_text(decision.pinned_seconds));
    case PlacementRule::seldom_copied:
      return fmt::format(
          "the {} copies of {} take {} each from pageable memory and {} from pinned, the pinning "
          "included: locked pages would not pay in the {} they live",
          use.copies(), those(use), seconds_text(decision.pageable_seconds), seconds_text(decision.pinned_seconds),
          seconds_text(use.seconds_alive / static_cast<double>(use.buffers)));
  }
  return {};
}

}  // namespace

std::string_view to_string(Placement placement) noexcept {
  auto const index = static_cast<std::size_t>(placement);
  return index < placement_names.size() ? placement_names.at(index) : "no placement";
}

std::string_view to_string(AccessPattern pattern) noexcept {
  auto const index = static_cast<std::size_t>(pattern);
  return index < pattern_names.size() ? pattern_names.at(index) : "no pattern";
}

RecordedUse& RecordedUse::operator+=(RecordedUse const& other) noexcept {
  buffers += other.buffers;
  host_reads += other.host_reads;
  host_writes += other.host_writes;
  device_reads += other.device_reads;
  device_writes += other.device_writes;
  uploads += other.uploads;
  uploaded_bytes += other.uploaded_bytes;
  downloads += other.downloads;
  downloaded_bytes += other.downloaded_bytes;
  seconds_alive += other.seconds_alive;
  return *this;
}

Location location_of(Placement placement) {
  switch (placement) {
    case Placement::device_local:
    case Placement::read_only_optimized:
    case Placement::random_access_optimized:
      return Location::device;
    case Placement::host_pinned:
    case Placement::write_only_optimized:
    case Placement::streaming_optimized:
      return Location::pinned;
    case Placement::host_accessible:
      return Location::host;
    case Placement::unified:
      return Location::unified;
    case Placement::automatic:
      break;
  }
  throw InvalidArgument("placement", std::string(to_string(placement)), "a place: `automatic` is decided first");
}

CopySeconds copy_seconds(RecordedUse const& use, PlacementMachine const& machine) noexcept {
  auto const rate = machine.host_copy_bytes_per_second;
  auto const up = copies_over(machine.to_device, use.uploads, use.uploaded_bytes, rate);
  auto const down = copies_over(machine.to_host, use.downloads, use.downloaded_bytes, rate);
  return {up.pageable + down.pageable, up.pinned + down.pinned};
}

Placement placement_by_table(std::size_t bytes, AccessPattern access) noexcept {
  switch (row_of(bytes, access)) {
    case PlacementRule::read_only:
      return Placement::read_only_optimized;
    case PlacementRule::small:
      return Placement::host_pinned;
    default:
      return Placement::device_local;
  }
}

PlacementDecision decide_placement(PlacementQuestion const& question, PlacementMachine const& machine,
                                   RecordedUse const& use) {
  check(question);
  PlacementDecision decision;
  decision.asked = question.asked;
  decision.bytes = question.bytes;
  decision.available_bytes = machine.available_bytes;
  decision.use = use;
  if (question.asked != Placement::automatic) {
    decision.placement = question.asked;
    decision.rule = PlacementRule::asked;
  } else if (machine.shares_host_memory) {
    decision.placement = machine.has_unified_memory ? Placement::unified : Placement::host_accessible;
    decision.rule = PlacementRule::shared_memory;
  } else {
    decision.placement = placement_by_table(question.bytes, question.access);
    decision.rule = row_of(question.bytes, question.access);
    if (decision.rule == PlacementRule::large && machine.has_unified_memory && in_no_order(question.access)) {
      decision.placement = Placement::unified;
      decision.rule = PlacementRule::scattered;
    }
    // What the user says of the data counts more than what others of its name did.
    if (decision.rule != PlacementRule::read_only) consult(decision, machine);
    if (on_device(decision.placement) && question.bytes > machine.available_bytes) {
      decision.placement = Placement::host_pinned;
      decision.rule = PlacementRule::device_full;
    }
  }
  decision.wanted = decision.placement;
  decision.placement = served(decision.wanted, machine);
  decision.location = location_of(decision.placement);
  return decision;
}

std::string PlacementDecision::why() const {
  auto text = fmt::format("{}: {}", to_string(placement), reason(*this));
  if (degraded()) {
    auto const what = location_of(wanted) == Location::unified ? "has no unified memory" : "locks no pages";
    text += fmt::format("; instead of {}, since the machine {}", to_string(wanted), what);
  }
  return text;
}

PlacementRecommendations recommend_placements(PlacementMachine const& machine, UseBySize const& use) {
  PlacementRecommendations result;
  auto const row = [&](std::string_view what, PlacementQuestion const& question, RecordedUse const& of) {
    auto const by_table =
        question.asked != Placement::automatic ? question.asked : placement_by_table(question.bytes, question.access);
    auto const decision = decide_placement(question, machine, of);
    if (decision.placement != by_table) result.hints.push_back(fmt::format("{}: {}", what, decision.why()));
    return decision.placement;
  };
  // A row is asked by what its buffers are on average, or by its smallest.
  auto const size = [](RecordedUse const& of, std::size_t least, std::size_t most) {
    if (of.copies() == 0) return least;
    return std::clamp(static_cast<std::size_t>(of.copied_bytes() / of.copies()), least, most);
  };
  result.small_buffers = row("small buffers", {.bytes = size(use.small, 1, medium_from - 1)}, use.small);
  result.medium_buffers = row("medium buffers", {.bytes = size(use.medium, medium_from, large_above)}, use.medium);
  result.large_buffers =
      row("large buffers", {.bytes = size(use.large, large_above + 1, std::size_t{1} << 40)}, use.large);
  result.read_only = row("read-only data", {.bytes = medium_from, .access = AccessPattern::read_only}, {});
  // What the host often touches is asked for where it is fast for the host, if nothing else is known.
  auto const frequent = machine.shares_host_memory ? PlacementQuestion{.bytes = 1}
                                                   : PlacementQuestion{.bytes = 1, .asked = Placement::host_pinned};
  result.frequently_accessed = row("frequently accessed data", frequent, {});
  return result;
}

std::string to_string(PlacementRecommendations const& recommendations) {
  std::string text;
  auto const line = [&text](std::string_view what, Placement placement) {
    text += fmt::format("{:<20} {}\n", what, to_string(placement));
  };
  line("small buffers", recommendations.small_buffers);
  line("medium buffers", recommendations.medium_buffers);
  line("large buffers", recommendations.large_buffers);
  line("frequently accessed", recommendations.frequently_accessed);
  line("read-only", recommendations.read_only);
  for (auto const& hint : recommendations.hints) text += fmt::format("hint: {}\n", hint);
  return text;
}

}  // namespace unimem
