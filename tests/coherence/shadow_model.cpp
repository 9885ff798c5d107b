#include "coherence/shadow_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

namespace unimem::testing {
namespace {

[[noreturn]] void violated(std::string const& what) {
  throw Violation(what);
}

}  // namespace

ShadowModel::ShadowModel(std::size_t bytes, std::vector<Added> const& added, CopyCost cost)
    : subject_(bytes), cost_(std::move(cost)), groups_{host_place}, bytes_(bytes) {
  for (auto const& [shared, file] : added) {
    auto const place = file ? subject_.add_file() : subject_.add_device(shared);
    files_.at(place) = file;
    groups_.push_back(shared ? groups_.at(*shared) : place);
  }
  for (auto& contents : contents_) contents.resize(bytes);
}

// --- operations

auto ShadowModel::access(Place place, ByteRange range, Intent intent) -> std::optional<Started> {
  auto const plan = subject_.plan_access(place, range, intent, cost_);
  bool const reads = intent != Intent::write, writes = intent != Intent::read;
  auto const first_lost = std::ranges::find_if(bytes_of(range), [&](auto byte) { return bytes_[byte].lost; });
  if (reads && *first_lost < range.end) {
    auto end = *first_lost;
    while (end < range.end && bytes_[end].lost) ++end;
    if (plan.lost != ByteRange{*first_lost, end}) violated("lost bytes may be read");
    check_refusal(plan);
    count("lost bytes not read");
    return {};
  }
  if (plan.lost || plan.conflict || plan.overrules) violated("an access is refused or overrules");

  Bytes wanted(size_bytes());
  if (has_data_ && reads)
    for (auto const byte : bytes_of(range)) wanted[byte] = !bytes_[byte].valid[place];
  check_copies(plan, place, wanted);

  auto started = start(plan, place, writes);
  for (auto const byte : bytes_of(range)) {
    if (reads && cell(place, byte) != bytes_[byte].truth)
      violated(fmt::format("place {} reads a wrong byte {}", place, byte));
    if (writes) cell(place, byte) = next_cell_++;
    if (writes) record_write(place, byte);
  }
  count(reads ? (writes ? "reads and writes" : "reads") : "writes");
  check();
  return started;
}

auto ShadowModel::mark(Place place, ByteRange range) -> std::optional<Started> {
  return mark(place, ByteRanges{range}, subject_.plan_mark(place, range, cost_));
}

auto ShadowModel::mark(Place place, ByteRanges const& ranges) -> std::optional<Started> {
  if (ranges.ranges().size() > 1) count("marks in parts");
  return mark(place, ranges, subject_.plan_mark(place, ranges, cost_));
}

auto ShadowModel::mark(Place place, ByteRanges const& ranges, Plan const& plan) -> std::optional<Started> {
  Bytes wanted(size_bytes()), unseen(size_bytes()), clash(size_bytes());
  bool covers_all = true;
  for (std::size_t byte = 0; has_data_ && byte < size_bytes(); ++byte) {
    auto const& standing = bytes_[byte];
    bool const marked = ranges.contains({byte, byte + 1}), held = held_in_storage(place, byte);
    unseen[byte] = standing.waiting != Standing::Waiting::no && !valid_in_storage(place, byte);
    clash[byte] = unseen[byte] && marked && held;
    wanted[byte] = marked && !held && !standing.lost;
    covers_all &= marked || !unseen[byte];
  }
  bool const clashes = std::ranges::find(clash, true) != clash.end();

  // The user writes before telling. A mark that will be refused has no writes that anybody may look at.
  std::vector<std::pair<std::size_t, Cell>> written;
  if (has_storage(place) && (!clashes || covers_all)) {
    for (auto const range : ranges.ranges()) {
      for (auto const byte : bytes_of(range)) {
        if (!wanted[byte]) written.emplace_back(byte, cell(place, byte) = next_cell_++);
      }
    }
  }

  if (plan.lost) violated("a mark reads");
  if (clashes && !covers_all) {
    check_conflict(plan, unseen, clash);
    check_refusal(plan);
    count("conflicts");
    return {};
  }
  if (plan.conflict) violated("a mark is refused that runs into nothing, or covers everything");
  if (plan.overrules != clashes) violated("a mark overrules that should not, or the other way round");
  check_copies(plan, place, wanted);

  auto started = start(plan, place, true);
  for (auto const& [byte, value] : written)
    if (cell(place, byte) != value)
      violated(fmt::format("byte {} was written behind the library's back and copied over", byte));
  for (auto const range : ranges.ranges()) {
    for (auto const byte : bytes_of(range)) {
      if (wanted[byte] && cell(place, byte) != bytes_[byte].truth)
        violated(fmt::format("garbage at byte {} becomes the truth", byte));
      record_write(place, byte);
    }
  }
  count("marks");
  if (clashes) count("marks that overrule");
  if (!plan.copies.empty()) count("marks that bring bytes in");
  check();
  return started;
}

auto ShadowModel::release(Place place, Place to) -> std::optional<Started> {
  return release(place, to, {0, size_bytes()}, subject_.plan_release(place, to, cost_));
}

auto ShadowModel::release(Place place, Place to, ByteRange part) -> std::optional<Started> {
  return release(place, to, part, subject_.plan_release(place, to, part, cost_));
}

auto ShadowModel::release(Place place, Place to, ByteRange part, Plan const& plan) -> std::optional<Started> {
  if (!has_storage(place)) return {};
  if (plan.lost || plan.conflict || plan.overrules) violated("a release is refused or overrules");
  Bytes wanted(size_bytes());
  for (auto const byte : bytes_of(part)) {
    auto const& valid = bytes_[byte].valid;
    bool const all = same_storage(place, to) || (on_host_side(place) && on_host_side(to));
    bool const elsewhere = all ? valid[to] : std::ranges::count(valid, true) > 1;
    wanted[byte] = valid[place] && !elsewhere;
  }
  check_copies(plan, to, wanted);
  for (auto const& copy : plan.copies)
    if (copy.from != place) violated("a release saves bytes from another place");
  auto started = start(plan, to, false);
  count(plan.copies.empty() ? "releases of nothing" : "releases that save");
  check();
  return started;
}

void ShadowModel::fail(Started const& started) {
  bool const same_data = has_data_ && data_ == started.data,
             same_memory = memories_[groups_[started.place]] == started.memory;
  for (std::size_t byte = 0; same_data && same_memory && byte < size_bytes(); ++byte)
    if (started.touched[byte]) cell(started.place, byte) = next_cell_++;
  subject_.roll_back(started.undo);

  if (same_data && started.adopted) {
    has_data_ = false;
    std::ranges::fill(bytes_, Standing{});
  }
  for (std::size_t byte = 0; same_data && !started.adopted && byte < size_bytes(); ++byte) {
    if (!started.changed[byte]) continue;
    auto const now = std::exchange(bytes_[byte], started.before[byte]);
    auto& then = bytes_[byte];
    for (Place place = 0; place < place_count(); ++place) {
      bool const ruined = started.touched[byte] && same_storage(place, started.place);
      then.held[place] = then.held[place] && now.held[place] && !ruined;
      then.valid[place] = then.valid[place] && then.held[place];
    }
    then.lost = !valid_anywhere(byte);
    stop_waiting_where_gone(byte);
  }
  count(started.adopted ? "adoptions taken back" : "failures");
  check();
}

bool ShadowModel::overlaps(Started const& started, ByteRange range) const {
  if (started.data != data_) return false;
  auto const bytes = bytes_of(range);
  return started.adopted ||
         std::ranges::any_of(bytes, [&](auto byte) { return static_cast<bool>(started.changed[byte]); });
}

void ShadowModel::add_storage(Place place) {
  bool const fresh = std::ranges::none_of(std::views::iota(Place{0}, place_count()),
                                          [&](auto other) { return same_storage(place, other) && has_storage(other); });
  storage_[place] = true;
  if (fresh) {
    memories_[groups_[place]] = ++memories_made_;
    for (auto& garbage : contents_[groups_[place]]) garbage = next_cell_++;
  }
  subject_.add_storage(place);
  check();
}

void ShadowModel::remove_storage(Place place, ByteRange part, bool all) {
  if (all) storage_[place] = false;
  all ? subject_.remove_storage(place) : subject_.remove_storage(place, part);
  for (auto const byte : bytes_of(part)) {
    auto& standing = bytes_[byte];
    if (standing.valid[place] && std::ranges::count(standing.valid, true) == 1) count("bytes lost");
    standing.valid[place] = standing.held[place] = false;
    if (!all && !held_in_storage(place, byte)) cell(place, byte) = next_cell_++;
    standing.lost = has_data_ && !valid_anywhere(byte);
    stop_waiting_where_gone(byte);
  }
  if (std::ranges::count(storage_, true) == 0) discarded_ = false;
  if (!all) count("storage gone in part");
  check();
}

void ShadowModel::discard() {
  subject_.discard();
  has_data_ = false;
  discarded_ = std::ranges::count(storage_, true) > 0;
  ++data_;
  std::ranges::fill(bytes_, Standing{});
  count("discards");
  check();
}

void ShadowModel::lose(ByteRange range) {
  subject_.lose(range);
  for (auto const byte : bytes_of(range)) {
    if (!has_data_) break;
    for (Place place = 0; place < place_count(); ++place) cell(place, byte) = next_cell_++;
    bytes_[byte] = Standing{};
    bytes_[byte].lost = true;
  }
  count(has_data_ ? "bytes lost to others" : "nothing lost to others");
  check();
}

// --- what an operation does to the model

auto ShadowModel::start(Plan const& plan, Place to, bool writes) -> Started {
  for (auto const place : {plan.place, to})
    if (size_bytes() > 0 && !has_storage(place)) add_storage(place);

  Started started;
  started.place = to;
  started.adopted = !has_data_ && plan.kind != Plan::Kind::release;
  started.before = bytes_;
  started.data = data_;
  started.memory = memories_[groups_[to]];
  started.changed.assign(size_bytes(), started.adopted);
  started.touched.assign(size_bytes(), false);
  for (auto const& copy : plan.copies)
    for (auto const byte : bytes_of(copy.range)) {
      started.changed[byte] = true;
      if (!copy.fence) started.touched[byte] = true;
    }
  auto const written = !writes ? ByteRanges{} : plan.parts.empty() ? ByteRanges{plan.range} : plan.parts;
  for (auto const range : written.ranges())
    for (auto const byte : bytes_of(range)) started.changed[byte] = started.touched[byte] = true;

  if (started.adopted) adopt(to);
  carry_out(plan);
  auto certain = subject_;
  started.undo = subject_.commit(plan);
  if (started.undo.rewrite) started.undo = Coherence::undo_of_rewrite(plan.place, plan.range, subject_.data());
  certain.commit_certain(plan);
  for (Place place = 0; place < subject_.place_count(); ++place) {
    if (certain.valid(place) == subject_.valid(place) && certain.written(place) == subject_.written(place)) continue;
    violated("what is certain is recorded as something else");
  }
  if (certain.lost() != subject_.lost() || certain.has_data() != subject_.has_data())
    violated("what is certain loses something else");
  return started;
}

void ShadowModel::carry_out(Plan const& plan) {
  for (auto const& copy : plan.copies) {
    count(copy.fence ? "fences" : "copies");
    for (auto const byte : bytes_of(copy.range)) {
      auto& standing = bytes_[byte];
      if (!copy.fence) cell(copy.to, byte) = cell(copy.from, byte);
      standing.valid[copy.to] = standing.held[copy.to] = true;
      auto const reached = on_host_side(copy.to) ? Standing::Waiting::for_host : Standing::Waiting::for_device;
      if (standing.waiting == reached) standing.waiting = Standing::Waiting::no;
    }
  }
}

void ShadowModel::adopt(Place place) {
  has_data_ = true;
  for (std::size_t byte = 0; byte < size_bytes(); ++byte) {
    bytes_[byte].truth = cell(place, byte);
    bytes_[byte].valid[place] = bytes_[byte].held[place] = true;
  }
  count("adoptions");
}

void ShadowModel::record_write(Place place, std::size_t byte) {
  auto& standing = bytes_[byte];
  standing.truth = cell(place, byte);
  standing.valid = {};
  standing.valid[place] = standing.held[place] = true;
  standing.waiting = waiting_of_writer(place);
  standing.lost = false;
}

/// A write waits to be seen by the other side for as long as its own side has it.
void ShadowModel::stop_waiting_where_gone(std::size_t byte) {
  auto& waiting = bytes_[byte].waiting;
  bool const written_on_host = waiting == Standing::Waiting::for_device;
  if (!valid_on_side(written_on_host, byte)) waiting = Standing::Waiting::no;
}

// --- what the model knows

bool ShadowModel::valid_in_storage(Place place, std::size_t byte) const {
  for (Place other = 0; other < place_count(); ++other)
    if (same_storage(place, other) && bytes_[byte].valid[other]) return true;
  return false;
}

bool ShadowModel::held_in_storage(Place place, std::size_t byte) const {
  for (Place other = 0; other < place_count(); ++other)
    if (same_storage(place, other) && bytes_[byte].held[other]) return true;
  return false;
}

bool ShadowModel::valid_anywhere(std::size_t byte) const {
  return valid_on_side(true, byte) || valid_on_side(false, byte);
}

bool ShadowModel::valid_on_side(bool host, std::size_t byte) const {
  for (Place place = 0; place < place_count(); ++place)
    if (on_host_side(place) == host && bytes_[byte].valid[place]) return true;
  return false;
}

auto ShadowModel::waiting_of_writer(Place place) const -> Standing::Waiting {
  return on_host_side(place) ? Standing::Waiting::for_device : Standing::Waiting::for_host;
}

BufferState ShadowModel::state() const {
  bool host_storage = false, device_storage = false;
  for (Place place = 0; place < place_count(); ++place)
    (on_host_side(place) ? host_storage : device_storage) |= has_storage(place);
  if (!has_data_) {
    if (discarded_) return BufferState::uninitialized;
    if (host_storage) return device_storage ? BufferState::synchronized : BufferState::host_only;
    return device_storage ? BufferState::device_only : BufferState::uninitialized;
  }
  bool host_newer = false, device_newer = false, host_waits = false, device_waits = false,
       anything_left = bytes_.empty();
  std::array<bool, max_places> complete{};
  for (Place place = 0; place < place_count(); ++place) complete[place] = !on_host_side(place);
  for (std::size_t byte = 0; byte < size_bytes(); ++byte) {
    bool const host = valid_on_side(true, byte), device = valid_on_side(false, byte);
    anything_left |= host || device;
    host_newer |= host && !device;
    device_newer |= device && !host;
    host_waits |= bytes_[byte].waiting == Standing::Waiting::for_host;
    device_waits |= bytes_[byte].waiting == Standing::Waiting::for_device;
    for (Place place = 0; place < place_count(); ++place)
      if (!bytes_[byte].valid[place] && !bytes_[byte].lost) complete[place] = false;
  }
  if (!anything_left) return BufferState::uninitialized;
  if (host_newer && device_newer) return BufferState::mixed;
  if (host_newer) return device_waits ? BufferState::host_dirty : BufferState::host_only;
  if (device_newer) return host_waits ? BufferState::device_dirty : BufferState::device_only;
  bool const one_has_all = std::ranges::find(complete, true) != complete.end();
  return one_has_all || bytes_.empty() ? BufferState::synchronized : BufferState::host_only;
}

std::string ShadowModel::fingerprint() const {
  std::string print{has_data_ ? 'd' : '-', discarded_ ? 'x' : '-'};
  auto const put = [&](bool flag) { print.push_back(flag ? '1' : '0'); };
  for (Place place = 0; place < place_count(); ++place) put(has_storage(place));
  for (std::size_t byte = 0; byte < size_bytes(); ++byte) {
    auto const& standing = bytes_[byte];
    print.push_back("ndh"[static_cast<std::size_t>(standing.waiting)]);
    put(standing.lost);
    for (Place place = 0; place < place_count(); ++place) {
      put(standing.valid[place]);
      put(standing.held[place]);
      put(subject_.written(place).contains({byte, byte + 1}));
      put(cell(place, byte) == standing.truth);
    }
  }
  return print;
}

void ShadowModel::count_in(Tally& tally) const {
  for (auto const& [what, times] : tally_) tally[what] += times;
}

}  // namespace unimem::testing
