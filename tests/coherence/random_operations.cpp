#include "coherence/random_operations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>

namespace unimem::testing {
namespace {

namespace gen = rc::gen;
using Operations = std::vector<Operation>;
using Ranges = std::vector<ByteRange>;
using gen::apply, gen::container, gen::inRange, gen::just;

/// Seconds as a link has them: a latency and a rate per pair of places. Without latency nothing may ever be joined
/// across a gap; with much of it nearly everything is.
struct Links {
  using Factors = std::array<int, ShadowModel::max_places * ShadowModel::max_places>;

  double latency = 0;
  Factors latencies{}, per_byte{};

  double operator()(Place from, Place to, std::size_t bytes) const {
    auto const pair = from * ShadowModel::max_places + to;
    return latency * latencies[pair] + per_byte[pair] * static_cast<double>(bytes);
  }
};

/// Four places; some share storage, with the host or with an earlier device, and one of the others may be a file.
RandomRun run_of(std::size_t bytes, std::size_t on_host, Place on_device, Place file, Links const& links,
                 Operations const& operations) {
  std::vector<ShadowModel::Added> added(3);
  if (on_host > 5) added[on_host - 6].shares_with = host_place;
  if (on_device > 5) added[2].shares_with = on_device - 5;
  bool const shared = std::ranges::any_of(added, [=](auto const& one) { return one.shares_with == file; });
  if (file > host_place && file <= added.size() && !shared && !added[file - 1].shares_with) added[file - 1].file = true;
  auto name = fmt::format("{} bytes, latency {}", bytes, links.latency);
  for (Place place = 1; place < 4; ++place) {
    auto const& one = added[place - 1];
    if (one.shares_with) name += fmt::format(", {} in the memory of {}", place, *one.shares_with);
    if (one.file) name += fmt::format(", {} a file", place);
  }
  return {std::move(name), ShadowModel(bytes, added, links), operations};
}

// --- operations

Operation access(Place place, ByteRange range, Intent intent, bool will_fail) {
  auto const* const verb = std::array{"read", "write", "change"}[static_cast<std::size_t>(intent)];
  return {fmt::format("{} [{}, {}) at {}{}", verb, range.begin, range.end, place, will_fail ? ", will fail" : ""),
          [=](auto& run) { run.start(range, will_fail, run.model.access(place, range, intent)); }};
}

Operation mark(Place place, ByteRange range, bool will_fail) {
  return {fmt::format("mark [{}, {}) at {}{}", range.begin, range.end, place, will_fail ? ", will fail" : ""),
          [=](auto& run) { run.start(range, will_fail, run.model.mark(place, range)); }};
}

Operation mark_parts(Place place, Ranges const& ranges, Ranges const& holes, bool will_fail) {
  ByteRanges parts;
  for (auto const range : ranges) parts.add(range);
  for (auto const hole : holes) parts.remove(hole);
  std::string name = "mark parts";
  for (auto const part : parts.ranges()) name += fmt::format(" [{}, {})", part.begin, part.end);
  return {name + fmt::format(" at {}{}", place, will_fail ? ", will fail" : ""), [=](auto& run) {
            if (parts.empty()) return;
            ByteRange const all{parts.ranges().front().begin, parts.ranges().back().end};
            run.start(all, will_fail, run.model.mark(place, parts));
          }};
}

Operation save(Place place, Place to, bool will_fail, bool then_remove) {
  return {fmt::format("save {} to {}{}{}", place, to, will_fail ? ", will fail" : "", then_remove ? ", remove" : ""),
          [=](auto& run) {
            if (place == to) return;
            run.start({0, run.model.size_bytes()}, will_fail, run.model.release(place, to));
            if (then_remove && run.model.has_storage(place)) run.model.remove_storage(place);
          }};
}

/// As memory goes that a place has in parts.
Operation save_part(Place place, Place to, ByteRange part, bool will_fail) {
  return {fmt::format("save [{}, {}) of {} to {}{}, remove", part.begin, part.end, place, to,
                      will_fail ? ", will fail" : ""),
          [=](auto& run) {
            if (place == to) return;
            run.start(part, will_fail, run.model.release(place, to, part));
            if (run.model.has_storage(place)) run.model.remove_part(place, part);
          }};
}

Operation lose(ByteRange range) {
  return {fmt::format("lose [{}, {})", range.begin, range.end), [=](auto& run) { run.model.lose(range); }};
}

Operation toggle_storage(Place place) {
  return {fmt::format("storage at {} comes or goes", place), [=](auto& run) {
            run.model.has_storage(place) ? run.model.remove_storage(place) : run.model.add_storage(place);
          }};
}

/// What users do and chance hardly ever would: both places have everything, a few small edits at one, a look from the
/// other.
Operations edit_and_look(ByteRange whole, Place here, Place there, Ranges const& edits,
                         std::array<bool, 7> const& will_fail) {
  Operations all{access(here, whole, Intent::read, will_fail[0]), access(there, whole, Intent::read, will_fail[1])};
  for (auto const edit : edits)
    if (edit.size() < 5) all.push_back(access(here, edit, Intent::write, will_fail[all.size()]));
  all.push_back(access(there, whole, Intent::read, will_fail[6]));
  return all;
}

// --- any of them

rc::Gen<std::size_t> below(std::size_t limit) {
  return inRange<std::size_t>(0, limit);
}

rc::Gen<bool> one_in(std::size_t count) {
  return gen::map(below(count), [=](auto number) { return number == count - 1; });
}

rc::Gen<ByteRange> any_range(std::size_t size) {
  auto const from_to = [](auto one, auto other) { return ByteRange{std::min(one, other), std::max(one, other)}; };
  auto const few_from = [=](auto begin, auto more) { return ByteRange{begin, std::min(size, begin + 1 + more)}; };
  return gen::weightedOneOf<ByteRange>({{10, apply(from_to, below(size + 1), below(size + 1))},
                                        {5, apply(few_from, below(size + 1), below(4))},
                                        {3, just(ByteRange{0, size})}});
}

rc::Gen<Ranges> some(std::size_t least, std::size_t most, rc::Gen<ByteRange> const& range) {
  return gen::mapcat(inRange(least, most + 1), [=](std::size_t count) { return container<Ranges>(count, range); });
}

/// What belongs together; mostly one operation.
rc::Gen<Operations> any_operations(std::size_t size) {
  auto const place = inRange<Place>(0, ShadowModel::max_places);
  auto const range = any_range(size);
  auto const intent = gen::element(Intent::read, Intent::write, Intent::read_write);
  auto const will_fail = one_in(6);
  auto const one = [](rc::Gen<Operation> const& operation) { return container<Operations>(1, operation); };
  return gen::weightedOneOf<Operations>(
      {{48, one(apply(access, place, range, intent, will_fail))},
       {12, one(apply(mark, place, range, will_fail))},
       {12, one(apply(mark_parts, place, some(1, 4, range), some(0, 1, range), will_fail))},
       {12, one(apply(save, place, place, will_fail, one_in(2)))},
       {12, one(apply(save_part, place, place, range, will_fail))},
       {24, apply(edit_and_look, just(ByteRange{0, size}), place, place, some(2, 4, range),
                  container<std::array<bool, 7>>(will_fail))},
       {10, one(apply(toggle_storage, place))},
       {4, one(apply(lose, range))},
       {2, just(Operations{{"discard", [](auto& run) { run.model.discard(); }}})},
       {60, just(Operations{{"fail", [](auto& run) { run.fail_latest(); }}})}});
}

}  // namespace

void FailingLater::start(ByteRange range, bool will_fail, std::optional<ShadowModel::Started> operation) {
  if (!operation) return;
  // What builds on an operation that will fail must fail with it.
  bool const doomed = std::ranges::any_of(started, [&](auto const& earlier) { return model.overlaps(earlier, range); });
  if (doomed || will_fail) started.push_back(std::move(*operation));
}

void FailingLater::fail_latest() {
  if (started.empty()) return;
  auto const latest = std::move(started.back());
  started.pop_back();
  model.fail(latest);
}

void RandomRun::carry_out(ShadowModel::Tally& tally) const {
  FailingLater run{model, {}};
  for (auto const& operation : operations) operation.run(run);
  run.model.count_in(tally);
}

std::ostream& operator<<(std::ostream& out, RandomRun const& run) {
  out << run.buffer << ", " << run.operations.size() << " operations:";
  for (auto const& operation : run.operations) out << "\n  " << operation.name;
  return out;
}

rc::Gen<RandomRun> any_run() {
  auto const links = gen::construct<Links>(gen::element(0.0, 1.0, 10.0), container<Links::Factors>(inRange(1, 4)),
                                           container<Links::Factors>(inRange(1, 5)));
  auto const joined = [](std::vector<Operations> const& groups) {
    Operations all;
    for (auto const& group : groups) all.insert(all.end(), group.begin(), group.end());
    return all;
  };
  auto const fewer = [](Operations all) { return rc::shrink::removeChunks(std::move(all)); };  // of a group, too
  auto const on = [=](std::size_t bytes) {
    auto const operations = gen::map(container<std::vector<Operations>>(any_operations(bytes)), joined);
    return apply(run_of, just(bytes), below(9), inRange<Place>(0, 8), inRange<Place>(0, 6), links,
                 gen::shrink(operations, fewer));
  };
  auto const size = gen::weightedOneOf<std::size_t>({{19, inRange<std::size_t>(2, 42)}, {1, below(2)}});
  return gen::resize(600, gen::mapcat(size, on));  // of the operations; the others have limits of their own
}

}  // namespace unimem::testing
