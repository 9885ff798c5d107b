#include "device/cuda_standin/order.hpp"

#include "device/cuda_standin/streams.hpp"

#include <algorithm>

namespace unimem::standin {
namespace {

/// Older ones are forgotten: a program that never waits is not to make every command slower than the one before.
constexpr std::size_t most_entries = 2048;

bool is_kernel(Use const& use) {
  return use.bytes == 0;
}

Address end_of(Use const& use) {
  return use.begin + std::max<std::size_t>(use.bytes, 1);
}

}  // namespace

bool AccessHistory::conflict(Use const& one, Use const& other) const {
  if (one.begin >= end_of(other) || other.begin >= end_of(one)) return false;
  if (is_kernel(one) && is_kernel(other)) return false;  // nobody knows which of them writes what
  if (is_kernel(one) || is_kernel(other)) return care_ == Care::copies_and_kernels && (one.write || other.write);
  return one.write || other.write;
}

void AccessHistory::add(char const* name, std::vector<Use> const& uses, Stamp stamp, Clock const& clock) {
  if (care_ != Care::nothing) {
    for (auto const& use : uses) {
      auto const found = std::ranges::find_if(
          entries_, [&](Entry const& entry) { return conflict(entry.use, use) && !clock.covers(entry.stamp); });
      if (found != entries_.end()) violation(std::string{name} + " races " + found->name + " for the same bytes");
    }
  }
  for (auto const& use : uses) entries_.push_back({name, use, stamp});
  while (entries_.size() > most_entries) entries_.pop_front();
}

char const* AccessHistory::use_beyond(Clock const& clock, Address begin, Address end) const {
  for (auto const& entry : entries_) {
    if (entry.use.begin < end && begin < end_of(entry.use) && !clock.covers(entry.stamp)) return entry.name;
  }
  return nullptr;
}

void AccessHistory::forget(Clock const& host) {
  std::erase_if(entries_, [&](Entry const& entry) { return host.covers(entry.stamp); });
}

void follow_host(StreamState& stream) {
  auto const& all = machine();
  if (stream.host_seen == all.host_waits) return;
  stream.host_seen = all.host_waits;
  stream.clock.join(all.host);
  stream.clock.drop(all.known_ends);
  stream.context->blocking_clock.drop(all.known_ends);
}

void host_knows(Clock const& clock) {
  auto& all = machine();
  all.host.join(clock);
  ++all.host_waits;
  all.history.forget(all.host);
  std::erase_if(all.ends, [&](Stamp last) {
    auto const known = all.host.covers(last);
    if (known) all.known_ends.insert(last.stream);
    return known;
  });
  all.host.drop(all.known_ends);
}

void end_of_stream(StreamState const& stream) {
  machine().ends.push_back({stream.number, stream.tickets});
  host_knows({});  // it may be known already
}

}  // namespace unimem::standin
