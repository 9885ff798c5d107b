#include "process/shared_ranges.hpp"

#include <unimem/core/error.hpp>

#include "process/futex.hpp"
#include "process/shared_ranges_change.hpp"
#include "process/steps.hpp"

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
constexpr std::uint64_t layout = 3;

}  // namespace

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
  // Acquire: bytes that were written before this version are seen.
  return memory_->state.load(std::memory_order_acquire) >> Part::count;
}

std::uint32_t SharedRanges::change_count() const noexcept {
  return memory_->change_count.load();
}

void SharedRanges::wait_for_change(std::uint32_t seen, std::chrono::milliseconds longest) const noexcept {
  if (longest.count() <= 0 || change_count() != seen) return;
  memory_->waiting.fetch_add(1);
  wait_while(memory_->change_count, seen, longest);
  memory_->waiting.fetch_sub(1);
}

std::optional<SharedRanges::Holder> SharedRanges::join(Process process) {
  Change change(*this);
  auto& holders = change.holders();
  auto const used = holders.used();
  auto const free = std::ranges::find(used, 0U, &Slot::pid);
  auto const at = static_cast<std::size_t>(free - used.begin());
  if (at == most_holders) return std::nullopt;
  if (at == holders.count) ++holders.count;
  holders.all[at] = {process.started, process.pid, 0};
  change.come_into_force();
  return static_cast<Holder>(at + 1);
}

void SharedRanges::leave(Holder holder) {
  at_step(Step::leaving);
  {
    Change change(*this);
    if (change.drop(holder)) change.come_into_force();
  }
  at_step(Step::left);
}

void SharedRanges::note_end(Holder holder, std::chrono::milliseconds longest) {
  Change change(*this, longest);
  if (change.process_of(holder).pid == 0) return;
  change.holders().all[holder - 1].ends = 1;
  change.come_into_force();
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

std::vector<SharedRanges::Participant> SharedRanges::forget_dead() {
  auto found = participants();
  // Without the lock: each takes the system a while.
  std::erase_if(found, [](Participant const& one) { return is_alive(one.process); });
  std::erase_if(found, [&](Participant const& one) {
    Change change(*this);
    // Meanwhile another process may have had it leave, and its number be another's.
    bool const still_there = change.process_of(one.holder) == one.process;
    if (!still_there) return true;
    change.note_death(one.holder);
    static_cast<void>(change.drop(one.holder));
    change.come_into_force();
    return false;
  });
  return found;
}

SharedRanges::Deaths SharedRanges::deaths(std::uint64_t seen) const {
  Locked const locked(*this);
  auto const& all = locked.deaths();
  Deaths found{.count = all.count};
  auto const most = std::min<std::uint64_t>(all.count, most_deaths);
  for (auto number = std::max(seen, all.count - most); number < all.count; ++number) {
    auto const& one = all.latest[number % most_deaths];
    found.since.push_back({{static_cast<std::uint32_t>(one.pid), one.started}, one.lost_bytes});
  }
  return found;
}

SharedRanges::Changes SharedRanges::changes(Holder self, std::uint64_t since) const {
  Locked const locked(*this);
  Changes found;
  found.version = locked.version();
  for (auto const& one : locked.ranges()) {
    ByteRange const there{one.begin, one.end};
    if (one.version > since && one.last != self) found.written.add(there);
    if (one.lost == 0) continue;
    found.lost.add(there);
    found.loses = true;
  }
  for (auto const& one : locked.writes()) {
    auto const there = locked.range_of(one);
    if (one.holder == self) {
      found.lost.remove(there);
      found.written.remove(there);  // a neighbour's, which is told as one with it
    }
    if (one.holder != self) found.claims.push_back({one.holder, there, Claim::Kind::write});
  }
  return found;
}

SharedRanges::Situation SharedRanges::situation(std::chrono::milliseconds longest) const {
  Locked const locked(*this, longest);
  Situation found;
  Holder number = 0;
  for (auto const& slot : locked.slots()) {
    ++number;
    if (slot.pid != 0) found.participants.push_back({number, {slot.pid, slot.started}});
  }
  auto const add = [&](std::span<Claimed const> claims, Claim::Kind kind) {
    for (auto const& one : claims) {
      if (one.count != 0) found.claims.push_back({one.holder, locked.range_of(one), kind});
    }
  };
  add(locked.writes(), Claim::Kind::write);
  add(locked.reads(), Claim::Kind::read);
  for (auto const& one : locked.ranges()) {
    if (one.lost != 0) found.lost.add({one.begin, one.end});
  }
  return found;
}

void SharedRanges::validate() const {
  Locked const locked(*this);  // looks at their order
  auto const slots = locked.slots();
  auto const takes_part = [&](Holder holder) {
    return holder != 0 && holder <= slots.size() && slots[holder - 1].pid != 0;
  };
  for (auto const& one : locked.ranges()) {
    if (one.last != 0 && !takes_part(one.last)) throw std::logic_error("a range written by no participant");
    if (one.lost > 1 || (one.lost == 1 && one.last != 0)) throw std::logic_error("a range that is lost, and written");
    if (one.version == 0 || one.version > locked.version()) throw std::logic_error("a version that was not");
  }
  for (auto const claims : {locked.writes(), locked.reads()}) {
    for (auto const& one : claims) {
      static_cast<void>(locked.range_of(one));
      if (!takes_part(one.holder)) throw std::logic_error("a claim of no participant's");
      if (one.count == 0 && one.loses == 0) throw std::logic_error("a claim that has ended");
      auto const same = std::ranges::count_if(
          claims, [&](Claimed const& other) { return other.holder == one.holder && other.range() == one.range(); });
      if (same != 1) throw std::logic_error("one claim in two places");
      bool const in_the_way = std::ranges::any_of(locked.writes(), [&](Claimed const& other) {
        return other.holder != one.holder && other.range().meets(one.range());
      });
      if (in_the_way) throw std::logic_error("a write where another process reads or writes");
    }
  }
  if (std::ranges::any_of(locked.reads(), [](Claimed const& one) { return one.loses != 0; })) {
    throw std::logic_error("a read that loses bytes");
  }
}

void SharedRanges::throw_damaged(char const* what) const {
  throw IoError(name_, EBADMSG, fmt::format("what processes know of it together is damaged: {}", what));
}

}  // namespace unimem::detail
