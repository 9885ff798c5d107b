#include "process/shared_ranges.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::array<char, 8> magic{'u', 'n', 'i', 'm', 'e', 'm', 'R', 'g'};
constexpr std::uint64_t layout = 1;

}  // namespace

/// The lock, and the copy in force.
class SharedRanges::Locked {
 public:
  explicit Locked(SharedRanges const& ranges) : ranges_(ranges) {
    // Also after the death of its holder: what that one was changing is not in force.
    if (ranges_.memory_->lock.take(patience) == SharedLock::Taken::no) {
      throw IoError(ranges_.name_, ETIMEDOUT,
                    fmt::format("another process has kept its lock for {} ms: was it stopped?", patience.count()));
    }
    try {
      check(now());
    } catch (...) {
      ranges_.memory_->lock.release();
      throw;
    }
  }
  Locked(Locked const&) = delete;
  Locked& operator=(Locked const&) = delete;
  ~Locked() { ranges_.memory_->lock.release(); }

  [[nodiscard]] Copy const& now() const {
    return ranges_.memory_->copies[ranges_.memory_->in_force.load(std::memory_order_relaxed) & 1U];
  }
  [[nodiscard]] std::span<const Range> list() const { return std::span(now().ranges).first(now().range_count); }
  [[nodiscard]] std::span<const Copy::Slot> slots() const { return std::span(now().holders).first(now().holder_count); }

 private:
  void check(Copy const& copy) const {
    if (copy.range_count > most_ranges || copy.holder_count > most_holders) ranges_.throw_damaged("counts");
    std::uint64_t end = 0;
    for (auto const& range : std::span(copy.ranges).first(copy.range_count)) {
      if (range.begin < end || range.end <= range.begin || range.end > ranges_.memory_->size) {
        ranges_.throw_damaged("ranges");
      }
      end = range.end;
    }
  }

  SharedRanges const& ranges_;
};

/// What is to come into force: a list of ranges without bounds, and the slots.
class SharedRanges::Change {
 public:
  explicit Change(SharedRanges& ranges)
      : locked_(ranges), memory_(*ranges.memory_), ranges_(locked_.list().begin(), locked_.list().end()) {
    auto const in_force = memory_.in_force.load(std::memory_order_relaxed) & 1U;
    next_ = &memory_.copies[1 - in_force];
    next_->version.store(now().version.load(std::memory_order_relaxed), std::memory_order_relaxed);
    next_->holder_count = now().holder_count;
    std::ranges::copy(locked_.slots(), next_->holders.begin());
  }

  [[nodiscard]] Copy const& now() const { return locked_.now(); }
  [[nodiscard]] std::vector<Range>& list() noexcept { return ranges_; }
  [[nodiscard]] std::array<Copy::Slot, most_holders>& slots() noexcept { return next_->holders; }
  [[nodiscard]] std::uint32_t& slot_count() noexcept { return next_->holder_count; }

  std::uint64_t next_version() noexcept {
    auto const next = now().version.load(std::memory_order_relaxed) + 1;
    next_->version.store(next, std::memory_order_relaxed);
    return next;
  }

  /// Has ranges begin and end where `range` does, and leaves no gap within it.
  void cut_out(ByteRange range) {
    cut_at(range.begin);
    cut_at(range.end);
    std::vector<Range> whole;
    whole.reserve(2 * ranges_.size() + 1);
    auto const fill = [&](std::uint64_t begin, std::uint64_t end) {
      begin = std::max<std::uint64_t>(begin, range.begin);
      end = std::min<std::uint64_t>(end, range.end);
      if (begin < end) whole.push_back({begin, end, 0, 0, 0, 0, 0});
    };
    std::uint64_t at = 0;
    for (auto const& one : ranges_) {
      fill(at, one.begin);
      whole.push_back(one);
      at = one.end;
    }
    fill(at, range.end);
    ranges_ = std::move(whole);
  }

  /// False: it does not fit, and nothing has changed.
  [[nodiscard]] bool come_into_force() {
    std::erase_if(ranges_, [](Range const& one) { return one.version == 0 && one.writes == 0 && one.lost == 0; });
    join_alike();
    while (ranges_.size() > most_ranges) {
      if (!join_closest()) return false;
    }
    next_->range_count = static_cast<std::uint32_t>(ranges_.size());
    std::ranges::copy(ranges_, next_->ranges.begin());
    // Release: with the index, what it stands for is seen.
    auto const in_force = memory_.in_force.load(std::memory_order_relaxed) & 1U;
    memory_.in_force.store(1 - in_force, std::memory_order_release);
    return true;
  }

 private:
  void cut_at(std::uint64_t edge) {
    auto const found =
        std::ranges::find_if(ranges_, [&](Range const& one) { return one.begin < edge && edge < one.end; });
    if (found == ranges_.end()) return;
    auto behind = *found;
    behind.begin = found->end = edge;
    ranges_.insert(found + 1, behind);
  }

  [[nodiscard]] static bool is_settled(Range const& one) noexcept { return one.writes == 0 && one.lost == 0; }

  void join_alike() {
    std::vector<Range> joined;
    joined.reserve(ranges_.size());
    for (auto const& one : ranges_) {
      bool const alike = !joined.empty() && joined.back().end == one.begin && is_settled(joined.back()) &&
                         is_settled(one) && joined.back().version == one.version && joined.back().last == one.last;
      if (alike) {
        joined.back().end = one.end;
      } else {
        joined.push_back(one);
      }
    }
    ranges_ = std::move(joined);
  }

  /// Those two neighbours that make the shortest range.
  bool join_closest() {
    auto best = ranges_.end();
    for (auto one = ranges_.begin(); one + 1 != ranges_.end(); ++one) {
      if (!is_settled(*one) || !is_settled(one[1])) continue;
      if (best == ranges_.end() || one[1].end - one->begin < best[1].end - best->begin) best = one;
    }
    if (best == ranges_.end()) return false;
    best->end = best[1].end;
    best->version = std::max(best->version, best[1].version);
    if (best->last != best[1].last) best->last = 0;
    ranges_.erase(best + 1);
    return true;
  }

  Locked locked_;
  Memory& memory_;
  Copy* next_;
  std::vector<Range> ranges_;
};

std::size_t SharedRanges::bytes() noexcept {
  return sizeof(Memory);
}

SharedRanges SharedRanges::make(std::span<std::byte> memory, std::size_t size, std::string name) {
  if (memory.size() < sizeof(Memory)) {
    throw InvalidArgument("memory", fmt::format("{} bytes", memory.size()), fmt::format("at least {}", sizeof(Memory)));
  }
  auto* const made = new (memory.data()) Memory;
  made->layout = layout;
  made->size = size;
  made->lock.make();
  made->magic = magic;
  return {*made, std::move(name)};
}

SharedRanges SharedRanges::attach(std::span<std::byte> memory, std::size_t size, std::string name) {
  if (memory.size() < sizeof(Memory)) {
    throw InvalidArgument("memory", fmt::format("{} bytes", memory.size()), fmt::format("at least {}", sizeof(Memory)));
  }
  auto* const there = std::launder(reinterpret_cast<Memory*>(memory.data()));
  SharedRanges const attached{*there, std::move(name)};
  if (there->magic != magic) attached.throw_damaged("the first bytes");
  if (there->layout != layout) attached.throw_damaged("a layout of another version of the library");
  if (there->size != size) attached.throw_damaged("the size");
  return attached;
}

std::uint64_t SharedRanges::version() const noexcept {
  // Acquire: with the index, what it stands for is seen. Should that copy be in the making by now, another number is
  // found, and whoever looks then takes the lock.
  auto const in_force = memory_->in_force.load(std::memory_order_acquire) & 1U;
  return memory_->copies[in_force].version.load(std::memory_order_acquire);
}

std::optional<SharedRanges::Holder> SharedRanges::join(Process process) {
  Change change(*this);
  auto& count = change.slot_count();
  auto& slots = change.slots();
  auto const used = std::span(slots).first(count);
  auto const free = std::ranges::find(used, 0U, &Copy::Slot::pid);
  auto const at = static_cast<std::size_t>(free - used.begin());
  if (at == most_holders) return std::nullopt;
  if (at == count) ++count;
  slots[at] = {process.started, process.pid, 0};
  static_cast<void>(change.come_into_force());  // there are as many ranges as before
  return static_cast<Holder>(at + 1);
}

void SharedRanges::leave(Holder holder) {
  Change change(*this);
  if (holder == 0 || holder > change.slot_count()) return;
  change.slots()[holder - 1] = {};
  bool const was_writing = std::ranges::any_of(change.list(), [&](Range const& one) { return one.writer == holder; });
  auto const version = was_writing ? change.next_version() : 0;
  for (auto& one : change.list()) {
    if (one.last == holder) one.last = 0;  // its number is another's soon
    if (one.writer != holder) continue;
    one = {one.begin, one.end, version, 0, 0, 0, 1};
  }
  static_cast<void>(change.come_into_force());  // there are no more ranges than before
}

std::vector<SharedRanges::Participant> SharedRanges::participants() const {
  Locked const locked(*this);
  std::vector<Participant> found;
  Holder number = 0;
  for (auto const& slot : locked.slots()) {
    ++number;
    if (slot.pid != 0) found.push_back({number, {slot.pid, slot.started}});
  }
  return found;
}

std::optional<SharedRanges::Claim> SharedRanges::begin_write(Holder self, ByteRange range) {
  if (range.empty()) return std::nullopt;
  Change change(*this);
  for (auto const& one : change.list()) {
    ByteRange const there{one.begin, one.end};
    if (one.writes != 0 && one.writer != self && there.meets(range)) return Claim{one.writer, there};
  }
  change.cut_out(range);
  for (auto& one : change.list()) {
    if (one.begin < range.begin || one.end > range.end) continue;
    one.writer = self;
    ++one.writes;
  }
  if (!change.come_into_force()) {
    throw InvalidArgument("range", fmt::format("[{}, {})", range.begin, range.end),
                          fmt::format("one of at most {} that are being written to", most_ranges));
  }
  return std::nullopt;
}

void SharedRanges::end_write(Holder self, ByteRange range) {
  if (range.empty()) return;
  Change change(*this);
  auto const version = change.next_version();
  for (auto& one : change.list()) {
    if (one.begin < range.begin || one.end > range.end || one.writer != self) continue;
    if (--one.writes == 0) one.writer = 0;
    one.version = version;
    one.last = self;
    one.lost = 0;
  }
  static_cast<void>(change.come_into_force());  // there are no more ranges than before
}

SharedRanges::Changes SharedRanges::changes(Holder self, std::uint64_t since) const {
  Locked const locked(*this);
  Changes found;
  found.version = locked.now().version.load(std::memory_order_relaxed);
  for (auto const& one : locked.list()) {
    ByteRange const there{one.begin, one.end};
    if (one.version > since && one.last != self) found.written.add(there);
    if (one.lost != 0) found.lost.add(there);
    if (one.writes != 0 && one.writer != self) found.claims.push_back({one.writer, there});
  }
  return found;
}

void SharedRanges::validate() const {
  Locked const locked(*this);  // looks at their order
  for (auto const& one : locked.list()) {
    if ((one.writes == 0) != (one.writer == 0)) throw std::logic_error("writes without a writer, or a writer without");
    if (one.writer > most_holders || one.last > most_holders) throw std::logic_error("a range of no holder's");
    if (one.version > locked.now().version.load()) throw std::logic_error("a version to come");
    if (one.version == 0 && one.writes == 0 && one.lost == 0) throw std::logic_error("a range that says nothing");
  }
}

void SharedRanges::throw_damaged(char const* what) const {
  throw IoError(name_, EBADMSG, fmt::format("what processes know of it together is damaged: {}", what));
}

}  // namespace unimem::detail
