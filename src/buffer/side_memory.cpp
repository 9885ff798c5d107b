#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"
#include "core/spare_memory.hpp"
#include "device/page_watch.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace unimem {

std::shared_ptr<detail::Storage> BufferCore::Inside::new_host_memory(detail::AccessContext& context, std::size_t size) {
  if (unified != nullptr) {
    auto memory = manager->acquire(context, *unified, Location::unified, size, named());
    if (!memory) return nullptr;
    auto storage = detail::Storage::unified(*unified, *std::move(memory));
    storage->count_in(manager->usage_book(), key, id, options.made_by.get());
    return storage;
  }
  auto [block, part] = new_host_block(size);
  auto storage = std::allocate_shared<detail::Storage>(detail::SpareAllocator<detail::Storage>{}, detail::host_device(),
                                                       std::move(block), part);
  storage->count_in(manager->usage_book(), key, id, options.made_by.get());
  // As fresh memory of sim reads: what an earlier owner left looks like data.
  if (written_map) std::memset(storage->host_address(), 0xCD, size);
  return storage;
}

BufferCore::Inside::HostBlock BufferCore::Inside::new_host_block(std::size_t size) {
  // Tracked memory has its pages to itself, and so has what is closed while it is stale. No pool aligns as coarsely, so
  // it gets one page more than it needs.
  bool const in_pages = tracking == Tracking::pages || stale_views;
  auto const page = in_pages ? detail::PageWatch::page_bytes() : 1;
  auto const whole_pages = in_pages ? (size + page - 1) / page * page : size;  // a division takes as long as a lock
  auto const wanted = whole_pages + page - 1;
  Allocation memory;
  if (options.pinned || pin_next) {
    memory = manager->acquire_pinned_or_not(wanted, named());
    // Documented: pageable memory may serve instead, and is_pinned() says so.
    bool const locked = memory.location() == Location::pinned;
    pinned.store(locked, std::memory_order_relaxed);
    if (!locked) manager->note_refused_pinning();
  } else {
    memory = manager->acquire(detail::host_device(), Location::host, wanted, named());
  }
  auto const block = memory.memory();
  auto const skipped = in_pages ? (page - (block.object + block.offset) % page) % page : 0;
  return {std::move(memory), block.window(skipped, whole_pages)};
}

std::shared_ptr<detail::Storage> BufferCore::Inside::host_memory(detail::AccessContext& context) {
  auto const& there = in_memory_of_host();
  return there ? there : new_host_memory(context, bytes);
}

std::shared_ptr<detail::Storage> BufferCore::Inside::new_device_memory(detail::AccessContext& context, BufferCore& self,
                                                                       Device& wanted, std::size_t size, Queue& queue) {
  become_resident(self);
  auto request = named();
  request.queue = &queue;
  auto memory = manager->acquire(context, wanted, Location::device, size, request);
  if (!memory) return nullptr;
  context.took(*manager, size);
  std::shared_ptr<detail::Storage> storage;
  try {
    storage = std::make_shared<detail::Storage>(wanted, *std::move(memory));
    storage->count_in(manager->usage_book(), key, id, options.made_by.get());
    // The block may still be in use by earlier work of this queue, or by what the pool made it wait for with a ticket
    // of its own: work of other queues goes behind it.
    if (!UNIMEM_MUTANT(fresh_block_not_ordered)) storage->hazards().perhaps_written_by({0, size}, queue.record());
  } catch (...) {
    static_cast<void>(queue.record().wait_for_error());  // it goes back at once, for any other request
    throw;
  }
  return storage;
}

bool BufferCore::Inside::ensure_host(detail::AccessContext& context, ByteRange overwritten) {
  if (coherence.has_storage(host_place)) {
    if (host) ensure_resident(*host, overwritten == whole());
    return true;
  }
  if (bytes != 0) {
    auto memory = host_memory(context);
    if (!memory) return false;
    ensure_resident(*memory);
    memory->apply_advice(advice);
    host = std::move(memory);
    watch_host();
  }
  coherence.add_storage(host_place);
  return true;
}

void BufferCore::Inside::ensure_host_now(ByteRange overwritten) {
  if (coherence.has_storage(host_place)) {
    if (host) ensure_resident(*host, overwritten == whole());
    return;
  }
  detail::AccessContext context{detail::AccessContext::Waiting::never};
  static_cast<void>(ensure_host(context, overwritten));  // it has memory, or throws
}

bool BufferCore::Inside::ensure_device(detail::AccessContext& context, BufferCore& self, Place place, Queue& queue) {
  if (coherence.has_storage(place)) {
    if (auto const& there = storage_at(place)) ensure_resident(*there);
    return true;
  }
  auto& wanted = *side(place).device;
  if (bytes != 0) {
    auto memory = shares(wanted) ? host_memory(context) : new_device_memory(context, self, wanted, bytes, queue);
    if (!memory) return false;
    ensure_resident(*memory);
    memory->apply_advice(advice);
    side(place).storage = std::move(memory);
    publish_places();  // others that need it count on it from now on
  }
  coherence.add_storage(place);
  return true;
}

bool BufferCore::Inside::ensure(detail::AccessContext& context, BufferCore& self, Place place) {
  if (place == host_place) return ensure_host(context);
  return ensure_device(context, self, place, side(place).device->default_queue());
}

}  // namespace unimem
