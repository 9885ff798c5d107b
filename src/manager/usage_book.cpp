#include "manager/usage_book.hpp"

#include <unimem/device/device.hpp>

#include "core/stack.hpp"
#include "manager/usage_shards.hpp"

#include <algorithm>
#include <ctime>
#include <new>
#include <tuple>
#include <utility>

namespace unimem::detail {
namespace {

std::int64_t coarse_clock() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

unsigned number_of_this_thread() noexcept {
  static std::atomic<unsigned> next{1};
  static constinit thread_local unsigned number = 0;
  if (number == 0) number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
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

UsageBook::UsageBook(StackOptions const& stacks, Clock clock)
    : clock_(clock == nullptr ? coarse_clock : clock),
      stacks_(stacks),
      shards_(std::make_unique<UsageShard[]>(shard_count)) {  // NOLINT(modernize-avoid-c-arrays)
  for (std::size_t i = 0; i < shard_count; ++i) shards_[i].book = this;
}

UsageBook::~UsageBook() = default;

void UsageBook::retire(std::unique_ptr<UsageBook> book) noexcept {
  if (!book) return;
  // The last to leave destroys it: of the entries, which find their way by themselves, and of us here.
  auto* const retired = book.release();
  {
    AllShards const all{*retired};
    std::uint64_t live = 0;
    all.for_each_slot([&](UsageSlot const& slot) { live += slot.counts.allocations - slot.counts.releases; });
    retired->left_.store(live + 1, std::memory_order_relaxed);
    // Under all locks: an entry that leaves from now on sees it, and the number of them.
    retired->retired_.store(true, std::memory_order_relaxed);
  }
  retired->leave();
}

void UsageBook::leave() noexcept {
  // Acquire and release: the thread that destroys it comes behind all others.
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
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

void UsageBook::enter(UsageEntry& entry, UsageKey const& key, std::size_t bytes, std::uint64_t buffer,
                      std::vector<std::uintptr_t> const* made_by) {
  if (made_by == nullptr ? sampler_.is_due(stacks_) : !made_by->empty()) {
    auto stack = made_by == nullptr ? std::vector<std::uintptr_t>{} : *made_by;
    auto const calls = capture_stack();
    stack.insert(stack.end(), calls.begin(), calls.end());
    entry.stack_ = std::make_unique<std::vector<std::uintptr_t>>(std::move(stack));
  }
  entry.since_ = now();
  auto& shard = shard_of_this_thread();
  {
    std::lock_guard const held{shard.lock};
    if (auto* const slot = shard.find(key)) return add(shard, *slot, entry, bytes, buffer);
  }
  auto& line = line_of(key);
  std::lock_guard const held{shard.lock};
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
  if (book.made_.inherited()) return;
  auto const lived = std::max<std::int64_t>(0, book.now() - since_);
  bool retired = false;
  {
    // Wherever the thread that leaves is at home: where it was entered it is found.
    std::lock_guard const held{shard.lock};
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
  if (retired) book.leave();
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
  // Before others move on: a peak is of this moment or an earlier one.
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
    found.reserve(room);  // not while all threads wait
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

}  // namespace unimem::detail
