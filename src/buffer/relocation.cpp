#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/inside.hpp"
#include "buffer/storage.hpp"
#include "device/watched_wait.hpp"

#include <memory>
#include <mutex>
#include <utility>

// How a buffer's device memory moves to a better place while its address is not given away.

namespace unimem {

std::size_t BufferCore::try_relocate(Queue& queue, std::size_t most_bytes) {
  auto& device = queue.device();
  if (inside_->pins.load(std::memory_order_acquire) != 0) return 0;
  std::unique_lock lock{*inside_, std::try_to_lock};
  if (!lock.owns_lock() || inside_->captured || inside_->shares(device)) return 0;
  lock.release();
  Guard inside(*this, std::adopt_lock);
  auto const place = inside->find_place(device);
  if (!place || bytes_ > most_bytes || device.is_lost()) return 0;
  auto& storage = inside->side(*place).storage;
  if (!storage || storage->leased() || !storage->at_rest()) return 0;
  auto better = storage->better_place(inside->manager->pool(device, Location::device));
  if (!better) return 0;

  detail::wait_watched(queue.record());  // the copy comes behind it, and is not left alone once it is under way
  auto fresh = std::make_shared<detail::Storage>(device, std::move(better));
  fresh->count_in(inside->manager->usage_book(), inside->key, inside->id, inside->options.made_by.get());
  fresh->apply_advice(inside->advice);
  // Every byte, also those that are stale or were never written: whatever coherence says of this place it says of its
  // contents, and goes on to be true.
  queue.copy(fresh->memory(), storage->memory(), bytes_).wait();
  storage = std::move(fresh);
  return bytes_;
}

}  // namespace unimem
