#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_lock.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/host_device.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/replica_copy.hpp"
#include "buffer/shared_access.hpp"
#include "buffer/staging.hpp"
#include "buffer/transfer_engine.hpp"
#include "buffer/windows.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferGuard;
using detail::BufferLook;
using detail::BufferParts;
using detail::Commits;
using detail::HeldTurn;
using detail::Reconciler;
using detail::ReplicaAllocator;
using detail::SharedAccess;
using detail::TentativeChange;
using detail::TransferEngine;
using detail::Windows;

namespace {

/// What a queue can fill with.
constexpr std::size_t largest_pattern = 16;

void check_equal(ByteRange from, ByteRange to, std::size_t element_bytes) {
  if (from.size() == to.size()) return;
  throw SizeMismatch("copy", to.size() / element_bytes, from.size() / element_bytes);
}

/// By doubling what is filled already: as fast as memcpy, whatever the pattern's size.
void repeat(std::span<const std::byte> pattern, std::span<std::byte> target) {
  std::memcpy(target.data(), pattern.data(), pattern.size());
  for (auto filled = pattern.size(); filled < target.size();) {
    auto const count = std::min(filled, target.size() - filled);
    std::memcpy(target.data() + filled, target.data(), count);
    filled += count;
  }
}

/// Holds the locks of two buffers, which may be one, in the order of their ids.
class BothGuarded {
 public:
  BothGuarded(BufferParts& one, BufferParts& other) : first_(one.terms.id < other.terms.id ? one : other) {
    if (&one != &other) second_.emplace(one.terms.id < other.terms.id ? other : one);
  }

 private:
  BufferGuard first_;
  std::optional<BufferGuard> second_;
};

/// Threads that copy where there is no room for what all of them hold, each a source whose target then has none: one
/// after the other.
template <class Copy, class WasEarlierWork>
Event in_turn(Copy const& copied, WasEarlierWork const& was_earlier_work) {
  constexpr std::chrono::milliseconds patience{200};
  constexpr std::chrono::microseconds pause{100};
  static std::mutex turn;
  std::unique_lock lock{turn, std::defer_lock};
  auto const deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    bool const last = std::chrono::steady_clock::now() >= deadline;
    if (last || lock.owns_lock() || lock.try_lock()) {
      try {
        return copied();
      } catch (OutOfMemory const&) {
        if (last || was_earlier_work()) throw;
      }
    }
    std::this_thread::sleep_for(pause);
  }
}

/// Bytes were copied out of host memory: if that is a file's own pages, they may have been missing.
void check_what_was_copied(BufferParts& parts, ByteRange range) {
  if (parts.is_mapped()) BufferGuard(parts)->check_intact(range);
}

Event fill_on(Device& device, BufferCore& buffer, ByteRange range, std::span<const std::byte> pattern) {
  Operand const operand{&buffer, range, Intent::write};
  auto& queue = device.default_queue();
  return use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event>) {
    return queue.fill(memory.front(), pattern);
  });
}

}  // namespace

Device* BufferCore::device_to_fill(ByteRange range, std::size_t pattern_bytes) {
  if (!std::has_single_bit(pattern_bytes) || pattern_bytes > largest_pattern) return nullptr;
  Device* device = nullptr;
  detail::run_admitted(detail::operands(), [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->check_access("fill");
    parts->check_range(range);
    if (!Reconciler(*parts).look_or_wait(context, range)) return false;
    // What processes share is to be in the memory that they share.
    auto const place = parts->shared ? std::nullopt : parts->replicas.device_holding(parts->replicas.whole());
    device = place ? parts->replicas.places[*place].device : nullptr;
    return true;
  });
  return device;
}

bool BufferCore::is_own_host_memory(void const* pointer, std::size_t count) const {
  BufferLook const look{parts_->lock, parts_->terms};
  return !parts_->in_own_host_memory(pointer, count).empty();
}

Event BufferCore::fill_async(ByteRange range, std::span<const std::byte> pattern) {
  if (range.empty()) {
    static_cast<void>(use_host(range, Intent::write));
    return {};
  }
  if (auto* const device = device_to_fill(range, pattern.size())) return fill_on(*device, *this, range, pattern);
  auto const submit = [&](Queue& queue, DeviceMemory memory) {
    auto const program =
        queue.device().compile({"fill", "",
                                [copied = std::vector(pattern.begin(), pattern.end())](
                                    Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
                                  repeat(copied, {static_cast<std::byte*>(arguments[0].data), arguments[0].bytes});
                                }});
    KernelArgument argument;
    argument.memory = memory;
    return queue.run(program, Range{1}, {&argument, 1});
  };
  std::optional<Event> event;
  detail::run_admitted(use_of(range), [&](AccessContext& context) {
    Guard const parts(*parts_);
    if (parts->watch.watches() || parts->shared) return true;
    event = BufferAccess(*parts).overwrite_host(context, range, submit);
    return event.has_value();
  });
  if (!event) fill(range, pattern);  // bytes that arrive later could not be told from a user's
  return event.value_or(Event{});
}

void BufferCore::fill(ByteRange range, std::span<const std::byte> pattern) {
  auto* const device = range.empty() ? nullptr : device_to_fill(range, pattern.size());
  if (device != nullptr) {
    static_cast<void>(fill_on(*device, *this, range, pattern));
    return;
  }
  auto const use = use_host_to_write(range);
  auto* const base = static_cast<std::byte*>(use.address);
  if (!range.empty()) repeat(pattern, {base + range.begin, range.size()});
  written_on_host(range, use);
}

void BufferCore::write(std::size_t offset, std::span<const std::byte> data) {
  ByteRange const range{offset, offset + data.size()};
  auto const use = use_host_to_write(range);
  auto* const base = static_cast<std::byte*>(use.address);
  // The source may be this buffer's own host view.
  if (!data.empty()) std::memmove(base + offset, data.data(), data.size());
  written_on_host(range, use);
}

void BufferCore::read(std::size_t offset, std::span<std::byte> data) {
  ByteRange const range{offset, offset + data.size()};
  HostUse use;
  try {
    use = use_host(range, Intent::read);
  } catch (OutOfMemory const&) {
    if (!read_directly(range, data)) throw;
    note_read(range);
    return;
  }
  note_read(range);
  auto const* const base = static_cast<std::byte const*>(use.address);
  if (!data.empty()) std::memmove(data.data(), base + offset, data.size());
  check_what_was_copied(*parts_, range);
}

Event BufferCore::write_async(std::size_t offset, std::span<const std::byte> data) {
  ByteRange const range{offset, offset + data.size()};
  std::optional<Event> event;
  detail::run_admitted(use_of(range), [&](AccessContext& context) {
    Guard const parts(*parts_);
    if (parts->watch.watches() || parts->shared) return true;
    parts->check_access("copy_from");
    parts->check_range(range);
    if (!Reconciler(*parts).look_or_wait(context, range)) return false;
    event = BufferAccess(*parts).overwrite_host(context, range, [&](Queue& queue, DeviceMemory memory) {
      auto& work = parts->replicas.host()->work();
      auto const own = parts->in_own_host_memory(data.data(), data.size());
      if (!own.empty()) work.order_read(queue, own);
      work.reserve(2);  // this read, and the write that it is part of
      auto const uploaded = queue.upload(memory, data.data(), data.size());
      if (!own.empty()) work.read_by(own, uploaded);
      return uploaded;
    });
    return event.has_value();
  });
  if (!event) write(offset, data);  // bytes that arrive later could not be told from a user's
  return event.value_or(Event{});
}

Event BufferCore::read_async(std::size_t offset, std::span<std::byte> data) {
  ByteRange const range{offset, offset + data.size()};
  if (parts_->is_mapped()) {
    read(offset, data);  // or what is missing could not be told
    return {};
  }
  std::optional<Event> event;
  try {
    detail::run_admitted(use_of(range), [&](AccessContext& context) {
      Guard const parts(*parts_);
      if (parts->shared) return true;
      auto const arrived = BufferAccess(*parts).fetch(context, range);
      if (!arrived) return false;
      auto const own = parts->in_own_host_memory(data.data(), data.size());
      if (!own.empty() && parts->watch.writes()) return true;
      event = Event{};
      if (range.empty()) return true;
      auto& queue = detail::host_device().default_queue();
      auto& host = *parts->replicas.host();
      host.work().order_read(queue, range);
      if (!own.empty()) host.work().order_write(queue, own);
      host.work().reserve(2);
      event = queue.download(data.data(), host.host_window(range), data.size(), {{*arrived}});
      host.work().read_by(range, *event);
      if (!own.empty()) host.work().written_by(own, *event);
      host.usage().note_host(true, false);
      return true;
    });
  } catch (OutOfMemory const&) {
    if (!read_directly(range, data)) throw;
    event = Event{};
  }
  if (event) {
    note_read(range);
  } else {
    read(offset, data);  // what arrives in the buffer's own memory later could not be told from a user's
  }
  return event.value_or(Event{});
}

Event copy_bytes(BufferWindow from, BufferWindow to, std::size_t element_bytes) {
  check_equal(from.range, to.range, element_bytes);
  if (from.buffer == to.buffer && from.range == to.range) return {};
  auto lacks = BufferCore::CopyLacks::nothing;
  auto const copied = [&] {
    std::optional<Event> event;
    detail::run_admitted(detail::operands(*from.buffer, *to.buffer), [&](AccessContext& context) {
      event = BufferCore::copy_once(context, from, to, lacks);
      return event.has_value();
    });
    return *event;
  };
  try {
    return copied();
  } catch (OutOfMemory const& refused) {
    bool const in_vain = refused.requested() > refused.limit() || detail::is_in_work();
    auto const of_earlier_work = [&] { return lacks == BufferCore::CopyLacks::nothing; };
    if (of_earlier_work() || in_vain) throw;
    if (lacks == BufferCore::CopyLacks::host_memory) return in_turn(copied, of_earlier_work);
  }
  // What has no room beside what is there goes by the host.
  from.buffer->sync_to_host(from.range);
  return copied();
}

std::optional<Event> BufferCore::copy_once(AccessContext& context, BufferWindow from, BufferWindow to,
                                           CopyLacks& lacks) {
  lacks = CopyLacks::nothing;
  bool settled = false;
  // Both or none, since another process may copy the other way.
  HeldTurn reading, writing;
  {
    auto& source = *from.buffer->parts_;
    auto& target = *to.buffer->parts_;
    BothGuarded const guarded(source, target);
    source.check_access("copy");
    target.check_access("copy");
    target.check_writable("copying to it");
    source.check_range(from.range);
    target.check_range(to.range);
    if (!SharedAccess(source).begin(context, from.range, SharedAccess::Access::reads, reading) ||
        !SharedAccess(target).begin(context, to.range, SharedAccess::Access::writes, writing))
      return std::nullopt;
    if (!Reconciler(source).look_or_wait(context, from.range) || !Reconciler(target).look_or_wait(context, to.range))
      return std::nullopt;
    bool const shared = source.shared || target.shared;  // where the bytes are to be in the host's memory
    auto const source_place = shared ? std::nullopt : source.replicas.device_holding(from.range);
    if (source_place && !source.replicas.holds(host_place, from.range) && !from.range.empty()) {
      lacks = CopyLacks::room_beside_the_source;
      auto* const there = source.replicas.places[*source_place].device;
      // To where the target is at home; a target of the host or of no device stays beside its source.
      auto* const home = target.replicas.places.known_default_device();
      auto& on = home == nullptr || target.replicas.places.shares(*home) ? *there : *home;
      auto& queue = on.default_queue();
      auto const target_place = Windows(target).place_for(on, to.range);
      Windows(target).check_write(target_place, to.range);
      if (!ReplicaAllocator(target).ensure_device(context, target_place, to.range, queue)) return std::nullopt;
      auto& here = *source.replicas.at(*source_place);
      auto& beyond = *target.replicas.at(target_place);
      auto const staging = target.terms.named();
      Allocation aside;
      if (detail::overlap(here, from.range, beyond, to.range)) {
        auto options = staging;
        options.queue = &queue;
        auto block = target.terms.manager->acquire(context, on, Location::device, from.range.size(), options);
        if (!block) return std::nullopt;
        aside = *std::move(block);
      }
      std::optional<detail::Staging> between;
      if (detail::goes_by_the_host(here, beyond)) {
        auto blocks = detail::Staging::between_devices(context, *target.terms.manager, staging, from.range.size());
        if (!blocks) return std::nullopt;
        between.emplace(*std::move(blocks));
      }
      // Within one device nothing goes over a link, and nothing is counted.
      auto const from_place = there == &on ? target_place : target.place_of(*there);
      auto const meter = there == &on ? SharedMeter{} : TransferEngine(target).meter(from_place, target_place);
      auto write = Commits(target).plan_write(target_place, to.range);
      auto const event = detail::copy_between(*target.terms.manager, staging, here, from.range, beyond, to.range,
                                              &queue, meter, std::move(aside), between ? &*between : nullptr)
                             .event;
      Commits(target).commit(std::move(write), event, Commits::Events::of_all);
      if (target.watch.written_map())
        target.watch.written_map()->copied(to.range, *source.watch.written_map(), from.range.begin);
      if (there != &on) TransferEngine(target).count(from_place, target_place, from.range.size());
      return event;
    }
    settled = source.is_settled() && target.is_settled();
  }
  if (!settled) {
    from.buffer->resolve_now(from.range);
    to.buffer->resolve_now(to.range);
  }
  if (from.buffer != to.buffer) lacks = CopyLacks::host_memory;
  auto const source_use = from.buffer->use_host(from.range, Intent::read);
  auto const* const begin = static_cast<std::byte const*>(source_use.address);
  // The source's own memory, when both are one buffer: its address does not change by a second access.
  auto const target_use = to.buffer->use_host_to_write(to.range);
  auto* const end = static_cast<std::byte*>(target_use.address);
  if (!from.range.empty()) std::memmove(end + to.range.begin, begin + from.range.begin, from.range.size());
  to.buffer->written_on_host(to.range, target_use);
  check_what_was_copied(*from.buffer->parts_, from.range);
  if (to.buffer->written_map()) {
    to.buffer->written_map()->copied(to.range, *from.buffer->written_map(), from.range.begin);
  }
  return Event{};
}

std::optional<bool> BufferCore::copied_at_once(AccessContext& context, BufferCore& from, BufferCore& to,
                                               std::span<const CopyPiece> pieces) {
  ByteRanges sources, targets;
  for (auto const& piece : pieces) {
    sources.add({piece.from, piece.from + piece.bytes});
    targets.add({piece.to, piece.to + piece.bytes});
  }
  if (&from == &to && sources.intersects(targets)) return false;  // each onto itself
  auto& source = *from.parts_;
  auto& target = *to.parts_;
  BothGuarded const guarded(source, target);
  source.check_access("copy");
  target.check_access("copy");
  target.check_writable("copying to it");
  ByteRange const read{sources.ranges().front().begin, sources.ranges().back().end};
  ByteRange const written{targets.ranges().front().begin, targets.ranges().back().end};
  source.check_range(read);
  target.check_range(written);
  if (!Reconciler(source).look_or_wait(context, read) || !Reconciler(target).look_or_wait(context, written))
    return std::nullopt;
  if (source.shared || target.shared) return false;
  auto const source_place = source.replicas.device_holding(read);
  auto* const there = source_place ? source.replicas.places[*source_place].device : nullptr;
  auto* const home = target.replicas.places.known_default_device();
  bool const elsewhere = home != nullptr && home != there && !target.replicas.places.shares(*home);
  if (there == nullptr || source.replicas.holds(host_place, read) || elsewhere || target.replicas.places.shares(*there))
    return false;
  auto& queue = there->default_queue();
  auto const place = Windows(target).place_for(*there, written);
  Windows(target).check_write(place, written);
  if (!ReplicaAllocator(target).ensure_device(context, place, written, queue)) return std::nullopt;
  auto& here = *source.replicas.at(*source_place);
  auto& beyond = *target.replicas.at(place);
  std::vector<Event> needs;
  auto const read_parts = std::make_shared<ByteRanges const>(std::move(sources));
  auto const written_parts = std::make_shared<ByteRanges const>(std::move(targets));
  here.work().order_read(queue, read_parts);
  beyond.work().order_write(queue, written_parts);
  here.work().add_writers(read_parts, needs);
  std::vector<TentativeChange> writes;
  auto const ranges = written_parts->ranges();
  writes.reserve(ranges.size());
  for (auto const range : ranges) writes.push_back(Commits(target).plan_write(place, range, ranges.size()));
  here.work().reserve(2);
  beyond.work().reserve(2);
  auto const inside =
      here.in_memory(beyond.in_memory({pieces.begin(), pieces.end()}, &CopyPiece::to), &CopyPiece::from);
  auto const event = queue.copy(beyond.memory(), here.memory(), inside, needs);
  here.work().read_by(read_parts, event);
  beyond.work().written_by(written_parts, event);
  for (auto& write : writes) Commits(target).commit(std::move(write), event, Commits::Events::of_all);
  for (auto const& piece : pieces) {
    if (!target.watch.written_map()) break;
    target.watch.written_map()->copied({piece.to, piece.to + piece.bytes}, *source.watch.written_map(), piece.from);
  }
  return true;
}

bool BufferCore::overlap(std::span<const CopyPiece> pieces) {
  ByteRanges sources;
  for (auto const& piece : pieces) sources.add({piece.from, piece.from + piece.bytes});
  return std::ranges::any_of(
      pieces, [&](CopyPiece const& piece) { return sources.intersects({piece.to, piece.to + piece.bytes}); });
}

/// No order of the pieces would do for all: views of other extents make them go up and down at once.
void BufferCore::copy_aside_first(BufferCore& buffer, std::span<const CopyPiece> pieces, std::size_t element_bytes) {
  std::vector<CopyPiece> there, back;
  std::size_t bytes = 0;
  for (auto const& piece : pieces) {
    there.push_back({bytes, piece.from, piece.bytes});
    back.push_back({piece.to, bytes, piece.bytes});
    bytes += piece.bytes;
  }
  // At home nowhere, so that it stays beside what it is a copy of.
  BufferOptions options;
  options.manager = buffer.parts_->terms.manager.get();
  options.name = std::string(buffer.name());
  auto const aside = BufferCore::make(bytes, std::move(options));
  aside->allocate(false, false);  // which satisfies UNIMEM_STRICT, and no more
  copy_pieces(buffer, *aside, there, element_bytes);
  copy_pieces(*aside, buffer, back, element_bytes);
}

void copy_pieces(BufferCore& from, BufferCore& to, std::span<const CopyPiece> pieces, std::size_t element_bytes) {
  std::vector<CopyPiece> some;
  std::ranges::copy_if(pieces, std::back_inserter(some), [](CopyPiece const& piece) { return piece.bytes != 0; });
  bool const in_place =
      &from == &to && std::ranges::all_of(some, [](auto const& piece) { return piece.from == piece.to; });
  if (&from == &to && !in_place && some.size() > 1 && BufferCore::overlap(some)) {
    return BufferCore::copy_aside_first(from, some, element_bytes);
  }
  std::optional<bool> done;
  if (some.size() > 1) {
    detail::run_admitted(detail::operands(from, to), [&](AccessContext& context) {
      done = BufferCore::copied_at_once(context, from, to, some);
      return done.has_value();
    });
  }
  if (done.value_or(false)) return;
  for (auto const& [to_offset, from_offset, bytes] : some) {
    ByteRange const source{from_offset, from_offset + bytes}, target{to_offset, to_offset + bytes};
    static_cast<void>(copy_bytes({&from, source}, {&to, target}, element_bytes));
  }
}

}  // namespace unimem
