// The half of ShadowModel that looks: at plans before they are carried out, and at everything after every operation.

#include "coherence/shadow_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace unimem::testing {
namespace {

using Bytes = ShadowModel::Bytes;

[[noreturn]] void violated(std::string const& what) {
  throw Violation(what);
}

std::string text(PlannedCopy const& copy) {
  return fmt::format("{} of [{}, {}) from {} to {}", copy.fence ? "fence" : "copy", copy.range.begin, copy.range.end,
                     copy.from, copy.to);
}

/// The set as flags; a violation if it reaches outside the buffer.
Bytes flags_of(ByteRanges const& set, std::size_t size) {
  Bytes flags(size);
  for (auto const range : set.ranges()) {
    if (range.end > size) violated(fmt::format("a set reaches to byte {}", range.end));
    for (auto const byte : bytes_of(range)) flags[byte] = true;
  }
  return flags;
}

double cost_of(PlannedCopy const& copy, CopyCost const& cost) {
  return copy.fence ? 0 : cost(copy.from, copy.to, copy.range.size());
}

}  // namespace

/// The copies bring exactly `wanted`, and beyond it only current bytes between two wanted ones that no mark calls older
/// than what lies there.
void ShadowModel::check_copies(Plan const& plan, Place to, Bytes const& wanted) {
  Bytes brought(size_bytes());
  std::size_t end = 0;
  for (auto const& copy : plan.copies) {
    if (copy.to != to || copy.from == to) violated(text(copy) + " goes to the wrong place");
    if (copy.range.empty() || copy.range.end > size_bytes()) violated(text(copy) + " is empty or outside");
    if (copy.range.begin < end) violated(text(copy) + " overlaps its predecessor");
    if (copy.fence != same_storage(copy.from, to)) violated(text(copy) + " should be the other of the two");
    end = copy.range.end;
    if (!wanted[copy.range.begin] || !wanted[end - 1]) violated(text(copy) + " is wider than needed");
    for (auto const byte : bytes_of(copy.range)) {
      if (!bytes_[byte].valid[copy.from]) violated(text(copy) + " carries stale bytes");
      if (!wanted[byte] && plan.kind == Plan::Kind::mark) violated(text(copy) + " overwrites what was marked");
      if (!copy.fence && wanted[byte] && plan.kind != Plan::Kind::release && valid_in_storage(to, byte)) {
        violated(text(copy) + " where a fence would do");
      }
      brought[byte] = true;
    }
    auto const whole = bytes_of(copy.range);
    if (!std::ranges::all_of(whole, [&](auto byte) { return static_cast<bool>(wanted[byte]); }))
      count("copies across a gap");
  }
  for (std::size_t byte = 0; byte < size_bytes(); ++byte)
    if (wanted[byte] && !brought[byte]) violated(fmt::format("byte {} is not brought in", byte));
  check_cost(plan, to, wanted);
}

/// The copies cost no more than the cheapest source for every piece of `wanted` would, and none could be joined with
/// the next.
void ShadowModel::check_cost(Plan const& plan, Place to, Bytes const& wanted) const {
  std::vector<PlannedCopy> pieces;
  auto const cheapest = [&](ByteRange range) {
    PlannedCopy best{to, to, range};
    for (Place from = 0; from < place_count(); ++from) {
      if (from == to || !bytes_[range.begin].valid[from]) continue;
      if (plan.kind == Plan::Kind::release && from != plan.place) continue;
      PlannedCopy const copy{from, to, range, same_storage(from, to)};
      if (best.from == to || cost_of(copy, cost_) < cost_of(best, cost_)) best = copy;
    }
    return best;
  };
  for (std::size_t begin = 0; begin < size_bytes();) {
    auto end = begin + 1;
    while (end < size_bytes() && wanted[end] == wanted[begin] && bytes_[end].valid == bytes_[begin].valid) ++end;
    if (wanted[begin]) {
      auto const piece = cheapest({begin, end});
      bool const continues = !pieces.empty() && pieces.back().from == piece.from && pieces.back().range.end == begin;
      if (continues) {
        pieces.back().range.end = end;
      } else {
        pieces.push_back(piece);
      }
    }
    begin = end;
  }
  double planned = 0, obvious = 0;
  for (auto const& copy : plan.copies) planned += cost_of(copy, cost_);
  for (auto const& piece : pieces) obvious += cost_of(piece, cost_);
  if (planned > obvious * (1 + 1e-9)) violated(fmt::format("copies cost {}, {} would do", planned, obvious));

  for (std::size_t next = 1; next < plan.copies.size(); ++next) {
    auto const &left = plan.copies[next - 1], &right = plan.copies[next];
    if (left.fence || right.fence) continue;
    if (plan.kind == Plan::Kind::mark && left.range.end != right.range.begin) continue;
    for (auto const from : {left.from, right.from}) {
      PlannedCopy const both{from, to, {left.range.begin, right.range.end}};
      auto const all = bytes_of(both.range);
      bool const current = std::ranges::all_of(all, [&](auto byte) { return bytes_[byte].valid[from]; });
      if (current && cost_of(both, cost_) <= cost_of(left, cost_) + cost_of(right, cost_)) {
        violated(text(left) + " and " + text(right) + " should be one");
      }
    }
  }
}

/// The conflict names a write of `unseen` bytes, in its whole length, that covers the first byte of `clash`.
void ShadowModel::check_conflict(Plan const& plan, Bytes const& unseen, Bytes const& clash) const {
  if (!plan.conflict) violated("a mark runs into an unsynchronized write and is accepted");
  auto const [place, range] = *plan.conflict;
  auto const first = static_cast<std::size_t>(std::ranges::find(clash, true) - clash.begin());
  if (place >= place_count() || same_storage(place, plan.place))
    violated("a conflict with a place that does not count");
  if (range.end > size_bytes() || first < range.begin || first >= range.end) violated("a conflict somewhere else");
  for (auto const byte : bytes_of(range)) {
    auto const& standing = bytes_[byte];
    if (!standing.valid[place] || standing.waiting != waiting_of_writer(place)) violated("a conflict with no write");
  }
  if (!unseen[first] || subject_.written(place).find(first) != range) violated("a conflict with a part of a write");
}

/// A refused plan moves nothing, and cannot be committed.
void ShadowModel::check_refusal(Plan const& plan) {
  if (!plan.copies.empty()) violated("a refused plan has copies");
  bool thrown = false;
  try {
    subject_.commit(plan);
  } catch (std::logic_error const&) {
    thrown = true;
  }
  if (!thrown) violated("a refused plan is committed");
  check();
}

void ShadowModel::check() {
  if (subject_.has_data() != has_data_) violated("there is data, or is not");
  Bytes lost(size_bytes()), for_host(size_bytes()), for_device(size_bytes());
  for (std::size_t byte = 0; byte < size_bytes(); ++byte) {
    lost[byte] = bytes_[byte].lost;
    for_host[byte] = bytes_[byte].waiting == Standing::Waiting::for_host;
    for_device[byte] = bytes_[byte].waiting == Standing::Waiting::for_device;
  }
  if (flags_of(subject_.lost(), size_bytes()) != lost) violated("other bytes are lost");

  ByteRanges written_on_host, written_on_devices;
  for (Place place = 0; place < place_count(); ++place) {
    if (subject_.has_storage(place) != has_storage(place)) violated("there is storage, or is not");
    (on_host_side(place) ? written_on_host : written_on_devices).add(subject_.written(place));
    auto const valid = flags_of(subject_.valid(place), size_bytes());
    for (std::size_t byte = 0; byte < size_bytes(); ++byte) {
      if (valid[byte] != bytes_[byte].valid[place])
        violated(fmt::format("byte {} is valid at {}, or is not", byte, place));
      if (valid[byte] && cell(place, byte) != bytes_[byte].truth)
        violated(fmt::format("byte {} is wrong at {}", byte, place));
    }
  }
  if (flags_of(written_on_host, size_bytes()) != for_device) violated("other bytes wait on the host's side");
  if (flags_of(written_on_devices, size_bytes()) != for_host) violated("other bytes wait on the devices");
  if (subject_.state() != state()) {
    violated(fmt::format("the state is {}, not {}", to_string(subject_.state()), to_string(state())));
  }
  subject_.validate();
  count(to_string(state()));
}

}  // namespace unimem::testing
