#include <unimem/buffer/buffer_core.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>

#include "buffer/inside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <utility>

namespace unimem {

Event use_on_device(Queue& queue, std::span<const Operand> operands,
                    std::function<Event(std::span<const DeviceMemory>)> const& submit) {
  std::vector<BufferCore*> buffers;
  buffers.reserve(operands.size());
  for (auto const& operand : operands) buffers.push_back(operand.buffer);
  // In id order, each once: two launches over the same buffers never wait for each other in a circle.
  std::ranges::sort(buffers, {}, [](BufferCore const* buffer) { return buffer->inside_->id; });
  buffers.erase(std::ranges::unique(buffers).begin(), buffers.end());
  std::deque<BufferCore::Guard> guards;
  for (auto* const buffer : buffers) guards.emplace_back(*buffer);

  auto& device = queue.device();
  for (auto* const buffer : buffers) {
    buffer->inside_->check_access("device access");
    buffer->inside_->settle(false);
  }

  std::vector<Event> depends_on;
  std::vector<DeviceMemory> memory;
  memory.reserve(operands.size());
  for (auto const& [buffer, range, intent] : operands) {
    auto& inside = *buffer->inside_;
    auto const place = inside.place_of(device);
    if (intent != Intent::write) inside.add_unfinished(depends_on);
    inside.prepare(*buffer, place, range, intent, queue, depends_on);
    auto const& storage = inside.side(place).storage;
    memory.push_back(storage ? storage->memory().window(range.begin, range.size()) : DeviceMemory{});
  }

  auto const event = submit(memory);

  depends_on.push_back(event);
  for (auto const& [buffer, range, intent] : operands) {
    auto& inside = *buffer->inside_;
    auto const place = inside.place_of(device);
    if (auto const& storage = inside.side(place).storage) {
      intent == Intent::read ? storage->read_by(event) : storage->written_by(event);
    }
    if (intent != Intent::read) inside.commit_write(place, range, depends_on);
  }
  return event;
}

DeviceLease BufferCore::lease(Device& device, Queue* queue, ByteRange range, Intent intent) {
  Guard inside(*this);
  inside->check_access("device access");
  inside->settle(queue == nullptr);
  auto& on = queue == nullptr ? device.default_queue() : *queue;
  auto const place = inside->place_of(device);
  std::vector<Event> events;
  inside->prepare(*this, place, range, intent, on, events);
  auto const& storage = inside->side(place).storage;
  if (queue == nullptr) {
    for (auto const event : events) static_cast<void>(event.wait_for_error());
    inside->settle(true);
    if (storage) intent == Intent::read ? storage->wait_to_read() : storage->wait_to_write();
  }
  if (intent != Intent::read) inside->commit_write(place, range, std::move(events));
  if (!storage) return {};
  storage->used_by_others(device, queue);
  return {storage, storage->memory().window(range.begin, range.size())};
}

Event BufferCore::prefetch(Device& device, Queue* queue) {
  auto& on = queue == nullptr ? device.default_queue() : *queue;
  Guard inside(*this);
  inside->check_access("prefetch");
  inside->settle(false);
  std::vector<Event> events;
  inside->prepare(*this, inside->place_of(device), {0, bytes_}, Intent::read, on, events);
  return events.empty() ? on.record() : events.back();
}

void BufferCore::sync_to_device(Device& device) {
  {
    Guard inside(*this);
    inside->check_allocated("sync_to_device");
  }
  static_cast<void>(prefetch(device, nullptr).wait_for_error());
  Guard inside(*this);
  inside->settle(true);
}

void copy_bytes(BufferCore& from, BufferCore& to, std::size_t element_bytes) {
  if (&from == &to) return;
  if (from.size_bytes() != to.size_bytes()) {
    detail::throw_size_mismatch("copy", to.size_bytes() / element_bytes, from.size_bytes() / element_bytes);
  }
  ByteRange const whole{0, from.size_bytes()};
  if (from.state() == BufferState::device_only || from.state() == BufferState::device_dirty) {
    auto& device = from.default_device();
    if (from.valid_on(device) && !device.shares_storage_with_host()) {
      auto& queue = device.default_queue();
      std::array const operands{Operand{&from, whole, Intent::read}, Operand{&to, whole, Intent::write}};
      use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory) {
        return queue.copy(memory[1], memory[0], whole.size());
      });
      return;
    }
  }
  auto const* const source = from.host(whole, Intent::read);
  auto* const target = to.host(whole, Intent::write);
  if (!whole.empty()) std::memcpy(target, source, whole.size());
}

namespace detail {

BufferOptions buffer_options(MemoryManager& manager, AllocationOptions const& options) {
  BufferOptions result;
  result.manager = &manager;
  result.device = options.device;
  result.location = options.location;
  result.placement = options.placement;
  result.access = options.access;
  result.pinned = options.location == Location::pinned;
  result.name = options.name;
  return result;
}

std::shared_ptr<BufferCore> wrap_host_memory(MemoryManager& manager, void* pointer, std::size_t bytes,
                                             std::size_t alignment, Location location, Ownership ownership) {
  if (location != Location::host && location != Location::pinned) {
    throw UnsupportedOperation("wrapping memory at Location::" + std::string(to_string(location)), "this version",
                               "only host and pinned memory can be wrapped");
  }
  if (pointer == nullptr && bytes != 0) throw InvalidArgument("pointer", "null", "the address of the memory");
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    throw InvalidArgument("pointer", fmt::format("{}", pointer), fmt::format("aligned to {} bytes", alignment));
  }
  BufferOptions options;
  options.manager = &manager;
  return std::make_shared<BufferCore>(bytes, std::move(options), BufferCore::Wrapped{pointer, std::move(ownership)});
}

}  // namespace detail
}  // namespace unimem
