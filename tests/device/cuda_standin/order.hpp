#pragma once

#include "device/cuda_standin/memory.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>

// What is ordered behind what, whatever the threads of a test run happen to do: a missing event or a wrong stream is
// found although the copy was done long since. Streams, events and the host's waits are followed by vector clocks.
//
// The host is one: what any thread has waited for, all are taken to know. So nothing is reported that a program could
// have known by a lock of its own.

namespace unimem::standin {

struct StreamState;

/// What comes before something: of each stream, the newest command that does.
class Clock {
 public:
  [[nodiscard]] bool covers(Stamp stamp) const {
    auto const found = newest_.find(stamp.stream);
    return found != newest_.end() && found->second >= stamp.ticket;
  }

  void add(Stamp stamp) {
    auto& newest = newest_[stamp.stream];
    newest = std::max(newest, stamp.ticket);
  }

  /// Streams that are over and known to the host come before everything, and need no place here.
  void drop(std::set<std::uint64_t> const& streams) {
    std::erase_if(newest_, [&](auto const& entry) { return streams.contains(entry.first); });
  }

  void join(Clock const& other) {
    for (auto const& [stream, ticket] : other.newest_) add({stream, ticket});
  }

 private:
  std::map<std::uint64_t, std::uint64_t> newest_;
};

/// Who touched which bytes, as far as the host has not waited for it. Under the machine's lock.
class AccessHistory {
 public:
  /// How much is compared: a kernel gets pointers, and may use bytes far from where they point.
  enum class Care : unsigned char { nothing, copies, copies_and_kernels };

  void set_care(Care care) { care_ = care; }

  /// A command takes its place behind `clock`: whatever touches the same bytes and does not come before it is a
  /// violation, unless both read.
  void add(char const* name, std::vector<Use> const& uses, Stamp stamp, Clock const& clock);

  /// The name of a use of any of the bytes that does not lie before `clock`, or null.
  [[nodiscard]] char const* use_beyond(Clock const& clock, Address begin, Address end) const;

  /// The host has waited: nothing before its clock can be in conflict with anything any more.
  void forget(Clock const& host);

  /// All of it: a device is gone, and what was queued on it with it.
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    char const* name;
    Use use;
    Stamp stamp;
  };

  [[nodiscard]] bool conflict(Use const& one, Use const& other) const;

  std::deque<Entry> entries_;
  Care care_ = Care::copies_and_kernels;
};

/// The command that is submitted next comes after all the host has waited for.
void follow_host(StreamState& stream);

/// The host has waited for everything before `clock`.
void host_knows(Clock const& clock);

/// A destroyed stream has done all it had: once the host knows of its last command, no clock needs to know the stream.
/// (A program may make thousands of them, and every command carries a clock.)
void end_of_stream(StreamState const& stream);

}  // namespace unimem::standin
