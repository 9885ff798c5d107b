#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/shared_list.hpp>

#include "core/type_name.hpp"
#include "device/watched_wait.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "process/shared_ranges.hpp"
#include "share/sent_note.hpp"
#include "share/shared_description.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace unimem {
namespace {

using detail::Peers;
using detail::SentNote;
using detail::SharedDescription;
using detail::SharedRanges;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// What the system calls a process; empty where it does not say.
std::string command_of(std::uint32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid), std::ios::binary);
  std::string name(std::istreambuf_iterator<char>(file), {});
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

/// Looks at the book of each buffer, of whichever holder sends it.
class Books final : public Peers::Visitor {
 public:
  [[nodiscard]] bool wants(Peers::Offered const& one) override {
    if (known_.contains(one.key) || SentNote::decode(one.bytes)) return false;
    try {
      static_cast<void>(SharedDescription::decode(one.bytes, {}));
    } catch (IoError const&) {
      return false;
    }
    return true;
  }
  void take(Peers::Offered const& one, std::vector<detail::UniqueFd> descriptors) override {
    if (known_.contains(one.key)) return;  // another process was asked at the same time
    try {
      known_.emplace(one.key, look(one, std::move(descriptors)));
      trouble_.erase(one.key);
    } catch (IoError const& error) {
      trouble_.insert_or_assign(one.key, error.what());
    }
  }

  /// Null: none has sent it. `trouble`: what was wrong with what was sent.
  [[nodiscard]] SharedRanges::Situation const* find(Peers::Key key) const {
    auto const found = known_.find(key);
    return found == known_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::string trouble(Peers::Key key) const {
    auto const found = trouble_.find(key);
    return found == trouble_.end() ? "none of its holders has told who else holds it" : found->second;
  }

 private:
  [[nodiscard]] SharedRanges::Situation look(Peers::Offered const& one, std::vector<detail::UniqueFd> descriptors) {
    auto const from = fmt::format("process {}", one.pid);
    if (descriptors.size() != 2) {
      throw IoError(from, EPROTO, fmt::format("sent {} descriptors instead of 2", descriptors.size()));
    }
    auto const bytes = SharedDescription::decode(one.bytes, from).bytes;
    auto const memory = detail::Segment::adopt(std::move(descriptors[1]), SharedRanges::bytes(), from);
    descriptors.clear();
    auto const book = SharedRanges::attach({memory.data(), memory.size()}, bytes, from);
    // Its lock is taken for less than a microsecond at a time, unless by a process that was stopped there.
    auto const left = std::chrono::duration_cast<milliseconds>(until_ - Clock::now());
    return book.situation(std::clamp(left, milliseconds(0), milliseconds(200)));
  }

  Clock::time_point const until_ = Clock::now() + Peers::patience;
  std::map<Peers::Key, SharedRanges::Situation> known_;
  std::map<Peers::Key, std::string> trouble_;
};

/// Each once, by pid.
class Holders {
 public:
  SharingProcess& of(std::uint32_t pid) {
    auto const [found, is_new] = all_.try_emplace(pid);
    if (is_new) found->second = {.pid = pid, .command = command_of(pid)};
    return found->second;
  }
  void add(SharedRanges::Situation const& situation) {
    std::map<SharedRanges::Holder, std::uint32_t> pids;
    std::map<std::uint32_t, ByteRanges> reading, writing;
    for (auto const& [holder, process] : situation.participants) {
      pids.emplace(holder, process.pid);
      of(process.pid).alive = is_alive(process);
    }
    for (auto const& claim : situation.claims) {
      auto const pid = pids.find(claim.holder);
      if (pid == pids.end()) continue;
      (claim.kind == SharedRanges::Claim::Kind::read ? reading : writing)[pid->second].add(claim.range);
    }
    for (auto const& [pid, ranges] : reading) of(pid).reading_bytes = ranges.size_bytes();
    for (auto const& [pid, ranges] : writing) of(pid).writing_bytes = ranges.size_bytes();
  }
  [[nodiscard]] std::vector<SharingProcess> take() {
    std::vector<SharingProcess> list;
    list.reserve(all_.size());
    for (auto& [pid, one] : all_) list.push_back(std::move(one));
    return list;
  }

 private:
  /// Where the system does not say, it is one that may live.
  static bool is_alive(SharedRanges::Process process) {
    try {
      return SharedRanges::is_alive(process);
    } catch (IoError const&) {
      return true;
    }
  }
  std::map<std::uint32_t, SharingProcess> all_;
};

void count(SentAndNotReceived& at, SentNote const& note) {
  bool const copied = note.kind != SentNote::Kind::shared;
  ++(copied ? at.copies : at.shared);
  (copied ? at.copied_bytes : at.shared_bytes) += note.bytes;
}

/// Of the processes that offer one buffer, in any order.
SharedWithOthers buffer_of(std::span<Peers::Offered const* const> offers, Books const& books) {
  auto const& first = *offers.front();
  auto const described = SharedDescription::decode(first.bytes, {});
  SharedWithOthers made{.id = {first.key.registry, first.key.number},
                        .name = described.name,
                        .buffer = described.buffer,
                        .element = detail::type_name(described.element_name),
                        .tag = described.tag,
                        .element_bytes = described.element_bytes,
                        .shape = Shape(described.shape),
                        .bytes = described.bytes};
  Holders holders;
  for (auto const* const one : offers) holders.of(one->pid).serves = true;
  if (auto const* const situation = books.find(first.key)) {
    holders.add(*situation);
    made.lost_bytes = situation->lost.size_bytes();
  } else {
    made.trouble = books.trouble(first.key);
  }
  made.holders = holders.take();
  return made;
}

}  // namespace

SharedOnThisHost shared_on_this_host() {
  detail::WatchedWait watch{"asking other processes what they share"};
  SharedOnThisHost found;
  Books books;
  auto const offered = Peers::list(books, [&] { watch.look(); }, &found.unanswered);
  std::map<Peers::Key, std::vector<Peers::Offered const*>> buffers;
  std::map<std::uint32_t, SentAndNotReceived> sent;
  for (auto const& one : offered) {
    if (auto const note = SentNote::decode(one.bytes)) {
      auto const [at, is_new] = sent.try_emplace(one.pid);
      if (is_new) at->second = {.pid = one.pid, .command = command_of(one.pid)};
      count(at->second, *note);
      continue;
    }
    try {
      static_cast<void>(SharedDescription::decode(one.bytes, fmt::format("process {}", one.pid)));
      buffers[one.key].push_back(&one);
    } catch (IoError const& error) {
      found.unanswered.emplace_back(error.what());
    }
  }
  for (auto const& [key, offers] : buffers) found.buffers.push_back(buffer_of(offers, books));
  for (auto& [pid, one] : sent) found.sent.push_back(std::move(one));
  return found;
}

}  // namespace unimem
