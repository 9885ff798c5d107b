#include "manager/usage_book.hpp"

#include <unimem/device/device.hpp>

#include "manager/forked_locks.hpp"
#include "manager/stack.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <new>
#include <tuple>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::size_t shard_count = 16;

/// Of those that live, so many of each shard speak for the use of their name.
constexpr std::size_t most_witnesses = 64;

std::int64_t coarse_clock() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

double seconds(std::int64_t nanoseconds) noexcept {
  return static_cast<double>(nanoseconds) * 1e-9;
}

unsigned number_of_this_thread() noexcept {
  static std::atomic<unsigned> next{1};
  static constinit thread_local unsigned number = 0;
  if (number == 0) number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

std::size_t hash_of(UsageKey const& key) noexcept {
  auto const device = reinterpret_cast<std::uintptr_t>(key.device);
  auto const mixed = std::hash<Name>{}(key.name) * 0x9E3779B97F4A7C15U + device * 0xC2B2AE3D27D4EB4FU +
                     static_cast<std::size_t>(key.location);
  return mixed ^ (mixed >> 29);
}

bool on_the_host(Location location) noexcept {
  return location != Location::device;
}

void add_up(UsageCounts& sum, UsageCounts const& more) noexcept {
  sum.allocations += more.allocations;
  sum.releases += more.releases;
  sum.live_bytes += more.live_bytes;
  sum.allocated_bytes += more.allocated_bytes;
  sum.seconds_alive += more.seconds_alive;
  sum.longest_seconds = std::max(sum.longest_seconds, more.longest_seconds);
  sum.copies_in += more.copies_in;
  sum.bytes_in += more.bytes_in;
  sum.copies_out += more.copies_out;
  sum.bytes_out += more.bytes_out;
  sum.host_reads += more.host_reads;
  sum.host_writes += more.host_writes;
  sum.device_reads += more.device_reads;
  sum.device_writes += more.device_writes;
}

}  // namespace

struct UsageBook::Place {
  Place(UsageKey const& key, std::size_t number) : device(key.device), location(key.location), index(number) {}
  Device const* device;
  Location location;
  std::size_t index;
  UsageGauge gauge{};
};

struct UsageBook::Line {
  Line(UsageKey const& of, std::size_t number, Place& at) : key(of), index(number), place(&at) {}
  UsageKey key;
  std::size_t index;
  Place* place;
  UsageGauge gauge{};
};

/// A shard's part of one line: what has been counted, but for the uses of those that live, who count themselves.
struct UsageSlot {
  UsageShard* shard;
  UsageBook::Line* line;
  std::int64_t* place_kept;
  std::int64_t kept = 0;
  std::int64_t longest = 0;
  std::int64_t alive = 0;
  UsageCounts counts{};
  UsageEntry* first = nullptr;
};

struct alignas(128) UsageShard {
  SpinLock lock;
  UsageBook* book = nullptr;
  UsageSlot* latest = nullptr;
  std::int64_t kept = 0;
  std::vector<std::unique_ptr<UsageSlot>> slots;
  std::vector<std::pair<UsageBook::Place*, std::unique_ptr<std::int64_t>>> places;
  /// By hash, open: its size is a power of two, at most half full.
  std::vector<UsageSlot*> table;

  [[nodiscard]] UsageSlot* find(UsageKey const& key) noexcept {
    if (latest != nullptr && latest->line->key == key) return latest;
    if (table.empty()) return nullptr;
    auto const mask = table.size() - 1;
    for (auto at = hash_of(key) & mask;; at = (at + 1) & mask) {
      if (table[at] == nullptr) return nullptr;
      if (table[at]->line->key == key) return latest = table[at];
    }
  }

  [[nodiscard]] UsageSlot& make(UsageBook::Line& line) {
    if (2 * (slots.size() + 1) > table.size()) {
      std::vector<UsageSlot*> larger(std::max<std::size_t>(16, 2 * table.size()));
      for (auto const& slot : slots) put(larger, *slot);
      table = std::move(larger);
    }
    auto place = std::ranges::find(places, line.place, [](auto const& one) { return one.first; });
    if (place == places.end()) {
      places.emplace_back(line.place, std::make_unique<std::int64_t>(0));
      place = places.end() - 1;
    }
    slots.reserve(slots.size() + 1);
    slots.push_back(std::make_unique<UsageSlot>(UsageSlot{this, &line, place->second.get()}));
    put(table, *slots.back());
    return *(latest = slots.back().get());
  }

 private:
  static void put(std::vector<UsageSlot*>& into, UsageSlot& slot) noexcept {
    auto const mask = into.size() - 1;
    auto at = hash_of(slot.line->key) & mask;
    while (into[at] != nullptr) at = (at + 1) & mask;
    into[at] = &slot;
  }
};

/// Holds every shard that can be had, in their order.
class UsageBook::AllShards {
 public:
  explicit AllShards(UsageBook const& book) noexcept : shards_(book.shards_.get()) {
    for (std::size_t i = 0; i < shard_count; ++i) held_[i] = shards_[i].lock.lock();
  }
  AllShards(AllShards const&) = delete;
  AllShards& operator=(AllShards const&) = delete;
  ~AllShards() {
    for (std::size_t i = 0; i < shard_count; ++i) {
      if (held_[i]) shards_[i].lock.unlock();
    }
  }

  template <class Look>
  void for_each_slot(Look const& look) const {
    for (std::size_t i = 0; i < shard_count; ++i) {
      if (!held_[i]) continue;
      for (auto const& slot : shards_[i].slots) look(*slot);
    }
  }

 private:
  UsageShard* shards_;
  std::array<bool, shard_count> held_{};
};

UsageBook::UsageBook(StackOptions const& stacks, Clock clock)
    : clock_(clock == nullptr ? coarse_clock : clock),
      stack_every_(stacks.every),
      shards_(std::make_unique<UsageShard[]>(shard_count)),  // NOLINT(modernize-avoid-c-arrays)
      held_(HeldOverFork::Order::records, {[this](HeldOverFork::Deadline deadline) { return hold_over_fork(deadline); },
                                           [this](bool) { let_go_after_fork(); }}) {
  for (std::size_t i = 0; i < shard_count; ++i) shards_[i].book = this;
}

UsageBook::~UsageBook() = default;

bool UsageBook::hold_over_fork(HeldOverFork::Deadline deadline) noexcept {
  if (!HeldOverFork::lock_by(deadline, mutex_)) return false;
  over_fork_.reset(new (std::nothrow) AllShards(*this));
  if (over_fork_ == nullptr) mutex_.unlock();
  return over_fork_ != nullptr;
}

void UsageBook::let_go_after_fork() noexcept {
  over_fork_.reset();
  mutex_.unlock();
}

void UsageBook::retire(std::unique_ptr<UsageBook> book) noexcept {
  if (!book) return;
  {
    AllShards const all{*book};
    std::uint64_t live = 0;
    all.for_each_slot([&](UsageSlot const& slot) { live += slot.counts.allocations - slot.counts.releases; });
    if (live != 0) {
      book->left_.store(live, std::memory_order_relaxed);
      // Under all locks: whoever leaves from now on sees it, and the number of them.
      book->retired_.store(true, std::memory_order_relaxed);
    }
  }
  // The last entry to leave destroys it.
  // NOLINTNEXTLINE(bugprone-unused-return-value): it finds its way by the entries
  if (book->retired_.load(std::memory_order_relaxed)) static_cast<void>(book.release());
}

std::int64_t UsageBook::now() const noexcept {
  return clock_();
}

UsageShard& UsageBook::shard_of_this_thread() const noexcept {
  return shards_[number_of_this_thread() % shard_count];
}

UsageBook::Line& UsageBook::line_of(UsageKey const& key) {
  std::lock_guard const lock{mutex_};
  auto& of_name = by_name_[key.name];
  for (auto* const line : of_name) {
    if (line->key == key) return *line;
  }
  auto place = std::ranges::find_if(
      places_, [&](auto const& one) { return one->device == key.device && one->location == key.location; });
  if (place == places_.end()) {
    places_.push_back(std::make_unique<Place>(key, places_.size()));
    place = places_.end() - 1;
  }
  of_name.reserve(of_name.size() + 1);
  lines_.push_back(std::make_unique<Line>(key, lines_.size(), **place));
  of_name.push_back(lines_.back().get());
  return *lines_.back();
}

void UsageBook::enter(UsageEntry& entry, UsageKey const& key, std::size_t bytes, std::uint64_t buffer) {
  if (stack_every_ != 0 && entered_.fetch_add(1, std::memory_order_relaxed) % stack_every_ == 0) {
    entry.stack_ = std::make_unique<std::vector<std::uintptr_t>>(capture_stack());
  }
  entry.since_ = now();
  auto& shard = shard_of_this_thread();
  {
    SpinGuard const held{shard.lock};
    if (!held) return;
    if (auto* const slot = shard.find(key)) return add(shard, *slot, entry, bytes, buffer);
  }
  auto& line = line_of(key);
  SpinGuard const held{shard.lock};
  if (!held) return;
  auto* slot = shard.find(key);
  if (slot == nullptr) slot = &shard.make(line);
  add(shard, *slot, entry, bytes, buffer);
}

void UsageBook::add(UsageShard& shard, UsageSlot& slot, UsageEntry& entry, std::size_t bytes,
                    std::uint64_t buffer) noexcept {
  entry.bytes_ = bytes;
  entry.buffer_ = buffer;
  entry.slot_ = &slot;
  entry.next_ = slot.first;
  if (slot.first != nullptr) slot.first->previous_ = &entry;
  slot.first = &entry;
  ++slot.counts.allocations;
  slot.counts.live_bytes += bytes;
  slot.counts.allocated_bytes += bytes;
  slot.line->gauge.grow(slot.kept, bytes);
  slot.line->place->gauge.grow(*slot.place_kept, bytes);
  total_.grow(shard.kept, bytes);
}

void UsageEntry::add_uses_to(UsageCounts& counts) const noexcept {
  if (!used_.load(std::memory_order_acquire)) return;
  auto const read = [this](Use use) { return std::atomic_ref(uses_[use]).load(std::memory_order_relaxed); };
  counts.host_reads += read(host_reads);
  counts.host_writes += read(host_writes);
  counts.device_reads += read(device_reads);
  counts.device_writes += read(device_writes);
  counts.copies_in += read(copies_in);
  counts.bytes_in += read(bytes_in);
  counts.copies_out += read(copies_out);
  counts.bytes_out += read(bytes_out);
}

void UsageEntry::leave() noexcept {
  auto& slot = *slot_;
  auto& shard = *slot.shard;
  auto& book = *shard.book;
  auto const lived = std::max<std::int64_t>(0, book.now() - since_);
  bool retired = false;
  {
    // Wherever the thread that leaves is at home: where it was entered it is found.
    SpinGuard const held{shard.lock};
    if (!held) return;
    (previous_ == nullptr ? slot.first : previous_->next_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    ++slot.counts.releases;
    slot.counts.live_bytes -= bytes_;
    slot.alive += lived;
    slot.longest = std::max(slot.longest, lived);
    add_uses_to(slot.counts);
    slot.line->gauge.shrink(slot.kept, bytes_);
    slot.line->place->gauge.shrink(*slot.place_kept, bytes_);
    book.total_.shrink(shard.kept, bytes_);
    retired = book.retired_.load(std::memory_order_relaxed);
  }
  // Acquire and release: who destroys it has all others behind him.
  if (retired && book.left_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete &book;
}

UsageBook::Sums UsageBook::sums() const {
  Sums sums;
  sums.of_lines.resize(lines_.size());
  sums.of_places.resize(places_.size());
  AllShards const all{*this};
  all.for_each_slot([&](UsageSlot const& slot) {
    auto& sum = sums.of_lines[slot.line->index];
    add_up(sum, slot.counts);
    sum.seconds_alive += seconds(slot.alive);
    sum.longest_seconds = std::max(sum.longest_seconds, seconds(slot.longest));
    for (auto const* entry = slot.first; entry != nullptr; entry = entry->next_) entry->add_uses_to(sum);
  });
  // Before anybody moves on: a peak is of this moment or an earlier one.
  for (auto const& line : lines_) {
    auto& sum = sums.of_lines[line->index];
    sum.peak_bytes = line->gauge.peak(sum.live_bytes);
    add_up(sums.of_places[line->place->index], sum);
    add_up(sums.total, sum);
  }
  for (auto const& place : places_) {
    auto& sum = sums.of_places[place->index];
    sum.peak_bytes = place->gauge.peak(sum.live_bytes);
  }
  sums.total.peak_bytes = total_.peak(sums.total.live_bytes);
  return sums;
}

Usage UsageBook::usage() const {
  Usage result;
  std::lock_guard const lock{mutex_};
  auto const counts = sums();
  result.places.reserve(places_.size());
  for (auto const& place : places_) {
    result.places.push_back({std::string(place->device->id()), place->location, counts.of_places[place->index]});
  }
  result.lines.reserve(lines_.size());
  for (auto const& line : lines_) {
    result.lines.push_back({std::string(line->key.device->id()), line->key.location, std::string(line->key.name.view()),
                            counts.of_lines[line->index]});
  }
  result.total = counts.total;
  std::ranges::sort(result.lines, [](UsageLine const& a, UsageLine const& b) {
    return std::tie(b.counts.live_bytes, a.device, a.location, a.name) <
           std::tie(a.counts.live_bytes, b.device, b.location, b.name);
  });
  std::ranges::sort(result.places, [](PlaceUsage const& a, PlaceUsage const& b) {
    return std::tie(b.counts.live_bytes, a.device, a.location) < std::tie(a.counts.live_bytes, b.device, b.location);
  });
  return result;
}

std::vector<LiveAllocation> UsageBook::live() const {
  std::vector<LiveAllocation> found;
  for (std::size_t room = 0;;) {
    found.reserve(room);  // not while everybody waits
    auto const at = now();
    AllShards const all{*this};
    std::size_t count = 0;
    all.for_each_slot([&](UsageSlot const& slot) { count += slot.counts.allocations - slot.counts.releases; });
    if (count > found.capacity()) {
      room = count + count / 8;
      continue;
    }
    all.for_each_slot([&](UsageSlot const& slot) {
      auto const& key = slot.line->key;
      for (auto const* entry = slot.first; entry != nullptr; entry = entry->next_) {
        found.push_back({entry->buffer_, key.device, key.location, entry->bytes_, key.name,
                         seconds(std::max<std::int64_t>(0, at - entry->since_)),
                         entry->stack_ ? *entry->stack_ : std::vector<std::uintptr_t>{}});
      }
    });
    return found;
  }
}

namespace {

/// What lines of one name say of it. A buffer has memory on the host, on devices, or on both: there have been as many
/// as the side has seen that has seen most.
class UseOfName {
 public:
  void add(UsageKey const& key, UsageCounts const& counts, std::uint64_t buffers, double seconds_alive) {
    use_.host_reads += counts.host_reads;
    use_.host_writes += counts.host_writes;
    use_.device_reads += counts.device_reads;
    use_.device_writes += counts.device_writes;
    bool const host = on_the_host(key.location);
    if (host) {
      use_.uploads += counts.copies_out;
      use_.uploaded_bytes += counts.bytes_out;
      use_.downloads += counts.copies_in;
      use_.downloaded_bytes += counts.bytes_in;
    }
    auto const* const side_of = host ? nullptr : key.device;
    auto side = std::ranges::find(sides_, side_of, &Side::device);
    if (side == sides_.end()) side = sides_.insert(sides_.end(), {side_of, 0, 0});
    side->buffers += buffers;
    side->seconds_alive += seconds_alive;
  }

  [[nodiscard]] RecordedUse all() const {
    auto use = use_;
    for (auto const& side : sides_) {
      if (side.buffers <= use.buffers) continue;
      use.buffers = side.buffers;
      use.seconds_alive = side.seconds_alive;
    }
    return use;
  }

 private:
  struct Side {
    Device const* device;
    std::uint64_t buffers;
    double seconds_alive;
  };
  RecordedUse use_;
  std::vector<Side> sides_;
};

}  // namespace

RecordedUse UsageBook::use_of(Name name) const {
  std::vector<Line*> lines;
  {
    std::lock_guard const lock{mutex_};
    auto const found = by_name_.find(name);
    if (found == by_name_.end()) return {};
    lines = found->second;
  }
  UseOfName use;
  auto const at = now();
  for (auto const* const line : lines) {
    for (std::size_t i = 0; i < shard_count; ++i) {
      UsageCounts counts;
      std::uint64_t buffers = 0;
      double seconds_alive = 0;
      {
        SpinGuard const held{shards_[i].lock};
        auto const* const slot = held ? shards_[i].find(line->key) : nullptr;
        if (slot == nullptr) continue;
        counts = slot->counts;
        buffers = slot->counts.releases;
        seconds_alive = seconds(slot->alive);
        std::size_t witnesses = 0;
        for (auto const* entry = slot->first; entry != nullptr && witnesses < most_witnesses; entry = entry->next_) {
          entry->add_uses_to(counts);
          seconds_alive += seconds(std::max<std::int64_t>(0, at - entry->since_));
          ++witnesses;
        }
        buffers += witnesses;
      }
      use.add(line->key, counts, buffers, seconds_alive);
    }
  }
  return use.all();
}

UseBySize UsageBook::use_by_size() const {
  std::vector<Name> names;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sizes;  // bytes and allocations of each
  {
    std::lock_guard const lock{mutex_};
    auto const counts = sums().of_lines;
    for (auto const& [name, lines] : by_name_) {
      std::uint64_t bytes = 0, allocations = 0;
      for (auto const* const line : lines) {
        bytes += counts[line->index].allocated_bytes;
        allocations += counts[line->index].allocations;
      }
      if (allocations == 0) continue;
      names.push_back(name);
      sizes.emplace_back(bytes, allocations);
    }
  }
  UseBySize use;
  for (std::size_t i = 0; i < names.size(); ++i) {
    auto const mean = sizes[i].first / sizes[i].second;
    auto& row = mean < (std::size_t{64} << 10) ? use.small : mean <= (std::size_t{16} << 20) ? use.medium : use.large;
    row += use_of(names[i]);
  }
  return use;
}

}  // namespace unimem::detail
