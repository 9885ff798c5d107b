#include <unimem/buffer/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "buffer/inside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace unimem {

BufferCore::Guard::Guard(BufferCore& core) : core_(core) {
  core_.inside_->pins.fetch_add(1, std::memory_order_relaxed);
  core_.inside_->mutex.lock();
}

BufferCore::Guard::Guard(BufferCore& core, std::adopt_lock_t /*adopt*/) noexcept : core_(core) {
  core_.inside_->pins.fetch_add(1, std::memory_order_relaxed);
}

BufferCore::Guard::~Guard() {
  auto const& inside = *core_.inside_;
  auto const& coherence = inside.coherence;
  ByteRange const whole{0, core_.bytes_};
  core_.host_address_ = inside.host ? inside.host->address() : nullptr;
  auto summary = static_cast<std::uint32_t>(coherence.state());
  if (coherence.has_data() && coherence.has_storage(host_place) && coherence.valid(host_place).contains(whole)) {
    summary |= host_current;
    bool const quiet = inside.pending.empty() && (!inside.host || inside.host->idle());
    if (quiet && core_.bytes_ != 0 && coherence.written(host_place).contains(whole)) summary |= host_exclusive;
  }
  // Release: who sees the summary also sees the address, and the bytes that were copied to it.
  core_.summary_.store(summary, std::memory_order_release);
  core_.inside_->mutex.unlock();
  core_.inside_->pins.fetch_sub(1, std::memory_order_relaxed);
}

BufferCore::BufferCore(std::size_t bytes, BufferOptions options)
    : bytes_(bytes), inside_(std::make_unique<Inside>(bytes, std::move(options))) {
  // What no address space holds is a negative count that lost its sign on the way.
  if (bytes > static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max())) {
    throw InvalidArgument("count", fmt::format("{} bytes", bytes), "at most 2^63 - 1 bytes");
  }
}

BufferCore::BufferCore(std::size_t bytes, BufferOptions options, Wrapped wrapped)
    : BufferCore(bytes, std::move(options)) {
  Guard inside(*this);
  if (bytes_ != 0) {
    inside->host =
        std::make_shared<detail::Storage>(unimem::device("cpu"), wrapped.pointer, bytes_, std::move(wrapped.ownership));
  }
  inside->allocated = true;
  inside->coherence.add_storage(host_place);
  auto const plan = inside->coherence.plan_access(host_place, {0, bytes_}, Intent::read, inside->cost());
  static_cast<void>(inside->coherence.commit(plan));
}

BufferCore::~BufferCore() {
  if (inside_->resident) inside_->manager->remove_resident(*this);
}

std::string_view BufferCore::name() const noexcept {
  return inside_->name.view();
}

Device& BufferCore::default_device() const {
  std::lock_guard const lock{inside_->mutex};
  return inside_->default_device();
}

MemoryManager& BufferCore::manager() const noexcept {
  return *inside_->manager;
}

BufferOptions const& BufferCore::options() const noexcept {
  return inside_->options;
}

bool BufferCore::is_pinned() const noexcept {
  return inside_->pinned.load(std::memory_order_relaxed);
}

bool BufferCore::is_allocated() const {
  std::lock_guard const lock{inside_->mutex};
  auto const& coherence = inside_->coherence;
  for (Place place = host_place; place < coherence.place_count(); ++place) {
    if (coherence.has_storage(place)) return true;
  }
  return false;
}

bool BufferCore::valid_on_host() const {
  return (summary_.load(std::memory_order_acquire) & host_current) != 0;
}

bool BufferCore::valid_on(Device& device) const {
  std::lock_guard const lock{inside_->mutex};
  for (std::size_t i = 0; i < inside_->sides.size(); ++i) {
    if (inside_->sides[i].device != &device) continue;
    auto const& coherence = inside_->coherence;
    return coherence.has_data() && coherence.valid(static_cast<Place>(i + 1)).contains({0, bytes_});
  }
  return false;
}

BufferStatistics BufferCore::statistics() const noexcept {
  auto const& counters = inside_->counters;
  constexpr auto relaxed = std::memory_order_relaxed;  // counts alone: nothing else is published through them
  return {counters.upload_bytes.load(relaxed),     counters.uploads.load(relaxed),
          counters.download_bytes.load(relaxed),   counters.downloads.load(relaxed),
          counters.between_bytes.load(relaxed),    counters.between.load(relaxed),
          counters.conflicting_marks.load(relaxed)};
}

void* BufferCore::host_slow(ByteRange range, Intent intent) {
  Guard inside(*this);
  inside->check_access("host access");
  auto& coherence = inside->coherence;
  // Manual tracking: a read-write view is a read until it is marked.
  if (inside->options.tracking == Tracking::manual && intent == Intent::read_write) intent = Intent::read;
  bool const current =
      coherence.has_data() && coherence.has_storage(host_place) && coherence.valid(host_place).contains(range);
  if (!(intent == Intent::read && current)) {
    inside->settle(true);
    inside->ensure_host();
    auto const plan = coherence.plan_access(host_place, range, intent, inside->cost());
    if (intent != Intent::write) inside->check_lost(plan);
    inside->carry_out(plan);
    if (inside->host) intent == Intent::read ? inside->host->wait_to_read() : inside->host->wait_to_write();
    static_cast<void>(coherence.commit(plan));
  }
  return inside->host ? inside->host->address() : nullptr;
}

void BufferCore::sync_to_host() {
  {
    Guard inside(*this);
    inside->check_allocated("sync_to_host");
  }
  static_cast<void>(host({0, bytes_}, Intent::read));
}

void BufferCore::synchronize() {
  {
    Guard inside(*this);
    inside->check_allocated("synchronize");
  }
  static_cast<void>(host({0, bytes_}, Intent::read));
  if (state() == BufferState::synchronized) return;
  Device* target = nullptr;
  {
    Guard inside(*this);
    // Where a copy stands already; the default device else.
    for (auto const& side : inside->sides) {
      if (side.storage && target == nullptr) target = side.device;
    }
    if (target == nullptr) target = &inside->default_device();
  }
  sync_to_device(*target);
}

void BufferCore::mark_host_dirty(ByteRange range) {
  Guard inside(*this);
  inside->check_allocated("mark_host_dirty");
  inside->settle(true);
  inside->mark(*this, host_place, range, {});
}

void BufferCore::mark_device_dirty(Device* device, ByteRange range, Event event) {
  Guard inside(*this);
  inside->check_allocated("mark_device_dirty");
  inside->settle(true);
  inside->mark(*this, inside->place_of(device == nullptr ? inside->default_device() : *device), range, event);
}

void BufferCore::fill(ByteRange range, std::span<const std::byte> pattern) {
  if (range.empty()) {
    static_cast<void>(host(range, Intent::write));
    return;
  }
  Device* current_on = nullptr;
  if (std::has_single_bit(pattern.size()) && pattern.size() <= 16) {
    Guard inside(*this);
    inside->check_access("fill");
    inside->settle(true);
    auto const& coherence = inside->coherence;
    for (std::size_t i = 0; i < inside->sides.size() && current_on == nullptr; ++i) {
      bool const whole = coherence.has_data() && coherence.valid(static_cast<Place>(i + 1)).contains({0, bytes_});
      if (whole) current_on = inside->sides[i].device;
    }
  }
  if (current_on != nullptr) {
    Operand const operand{this, range, Intent::write};
    auto& queue = current_on->default_queue();
    use_on_device(queue, {&operand, 1},
                  [&](std::span<const DeviceMemory> memory) { return queue.fill(memory.front(), pattern); });
    return;
  }
  auto* const begin = static_cast<std::byte*>(host(range, Intent::write)) + range.begin;
  // Doubling what is filled already: as fast as memcpy, whatever the element's size.
  std::memcpy(begin, pattern.data(), pattern.size());
  for (auto filled = pattern.size(); filled < range.size();) {
    auto const count = std::min(filled, range.size() - filled);
    std::memcpy(begin + filled, begin, count);
    filled += count;
  }
}

void BufferCore::write(std::size_t offset, std::span<const std::byte> data) {
  auto* const base = static_cast<std::byte*>(host({offset, offset + data.size()}, Intent::write));
  // The source may be this buffer's own host view.
  if (!data.empty()) std::memmove(base + offset, data.data(), data.size());
}

void BufferCore::read(std::size_t offset, std::span<std::byte> data) {
  auto const* const base = static_cast<std::byte const*>(host({offset, offset + data.size()}, Intent::read));
  if (!data.empty()) std::memmove(data.data(), base + offset, data.size());
}

void BufferCore::allocate(bool host, bool device) {
  Guard inside(*this);
  if (host) inside->ensure_host();
  if (device) inside->ensure(*this, inside->place_of(inside->default_device()));
  inside->allocated = true;
}

void BufferCore::free() {
  Guard inside(*this);
  // Everything that was in flight keeps its memory by its tickets; what it writes is nobody's any more.
  inside->pending.clear();
  Coherence fresh(bytes_);
  for (auto& side : inside->sides) {
    fresh.add_device(side.device->shares_storage_with_host() ? std::optional{host_place} : std::nullopt);
    side.storage.reset();
  }
  inside->host.reset();
  inside->coherence = std::move(fresh);
  inside->allocated = false;
  inside->pinned.store(false, std::memory_order_relaxed);
}

void BufferCore::release_device(Device* device) {
  Guard inside(*this);
  inside->settle(true);
  for (std::size_t i = 0; i < inside->sides.size(); ++i) {
    auto const& side = inside->sides[i];
    if (device != nullptr && side.device != device) continue;
    if (!inside->coherence.has_storage(static_cast<Place>(i + 1))) continue;
    if (side.storage && side.storage->leased()) {
      throw InvalidArgument("device", std::string(side.device->id()), "a device without leases on this buffer");
    }
    inside->release(*this, static_cast<Place>(i + 1), host_place);
  }
}

void BufferCore::release_host() {
  Guard inside(*this);
  inside->settle(true);
  if (!inside->coherence.has_storage(host_place)) return;
  inside->release(*this, host_place, inside->place_of(inside->default_device()));
}

void BufferCore::discard() {
  Guard inside(*this);
  inside->settle(true);
  inside->coherence.discard();
}

void BufferCore::validate() const {
  std::lock_guard const lock{inside_->mutex};
  auto const& coherence = inside_->coherence;
  coherence.validate();
  for (std::size_t i = 0; i < inside_->sides.size(); ++i) {
    bool const has_memory = inside_->sides[i].storage != nullptr;
    if (bytes_ != 0 && has_memory != coherence.has_storage(static_cast<Place>(i + 1))) {
      throw std::logic_error("BufferCore: coherence and memory disagree on " +
                             std::string(inside_->sides[i].device->id()));
    }
  }
  if (bytes_ != 0 && (inside_->host != nullptr) != coherence.has_storage(host_place)) {
    throw std::logic_error("BufferCore: coherence and memory disagree on the host");
  }
}

BufferCore::Reclaimable BufferCore::reclaimable(Device& device) noexcept {
  auto& inside = *inside_;
  // An operation in progress may be this very thread's: trying a lock that one holds is undefined.
  if (inside.pins.load(std::memory_order_acquire) != 0) return {};
  std::unique_lock const lock{inside.mutex, std::try_to_lock};
  if (!lock.owns_lock() || device.shares_storage_with_host()) return {};
  for (std::size_t i = 0; i < inside.sides.size(); ++i) {
    auto const& side = inside.sides[i];
    if (side.device != &device || !side.storage || side.storage->leased()) continue;
    auto const& coherence = inside.coherence;
    auto const link = device.link_cost();
    auto const back = static_cast<double>(bytes_) / link.bytes_per_second + link.latency_seconds;
    bool const clean = coherence.valid(host_place).contains({0, bytes_});
    return {side.storage->capacity(), clean ? back : 2 * back};
  }
  return {};
}

std::size_t BufferCore::try_reclaim(Device& device) {
  if (inside_->pins.load(std::memory_order_acquire) != 0 || device.shares_storage_with_host()) return 0;
  std::unique_lock lock{inside_->mutex, std::try_to_lock};
  if (!lock.owns_lock()) return 0;
  lock.release();
  Guard inside(*this, std::adopt_lock);
  for (std::size_t i = 0; i < inside->sides.size(); ++i) {
    auto const& side = inside->sides[i];
    if (side.device != &device || !side.storage || side.storage->leased()) continue;
    inside->settle(true);
    auto const bytes = side.storage->capacity();
    inside->release(*this, static_cast<Place>(i + 1), host_place);
    return bytes;
  }
  return 0;
}

}  // namespace unimem
