#include "buffer/replica_allocator.hpp"

#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/host_device.hpp"
#include "buffer/shared_memory.hpp"
#include "buffer/windows.hpp"
#include "core/spare_memory.hpp"
#include "core/system_page.hpp"
#include "device/page_watch.hpp"
#include "manager/access_context.hpp"
#include "manager/backing_file.hpp"
#include "manager/spill_files.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace unimem::detail {

std::shared_ptr<Replica> ReplicaAllocator::new_on_host(AccessContext& context, std::size_t size) const {
  auto const& terms = parts_->terms;
  if (auto* const unified = parts_->replicas.places.unified()) {
    auto block = terms.manager->acquire(context, *unified, Location::unified, size, terms.named());
    if (!block) return nullptr;
    auto replica = std::make_shared<Replica>(ReplicaMemory(*unified, *std::move(block)));
    replica->serve_host();
    terms.count_in(*replica);
    return replica;
  }
  auto [block, part] = new_host_block(context, size);
  if (block.empty()) return nullptr;
  auto replica =
      std::allocate_shared<Replica>(SpareAllocator<Replica>{}, ReplicaMemory(host_device(), std::move(block), part));
  terms.count_in(*replica);
  // As fresh memory of sim reads: what an earlier owner left looks like data.
  if (parts_->watch.written_map()) std::memset(replica->host_address(), 0xCD, size);
  return replica;
}

ReplicaAllocator::HostBlock ReplicaAllocator::new_host_block(AccessContext& context, std::size_t size) const {
  auto const& terms = parts_->terms;
  // Tracked memory has its pages to itself, and so has what is closed while it is stale. No pool aligns as coarsely, so
  // it gets one page more than it needs.
  bool const in_pages = parts_->watch.tracking() == Tracking::pages || parts_->watch.stale_views();
  auto const page = in_pages ? PageWatch::page_bytes() : 1;
  auto const whole_pages = in_pages ? (size + page - 1) / page * page : size;  // a division takes as long as a lock
  auto const wanted = whole_pages + page - 1;
  bool const locks = terms.options.pinned || parts_->pin_next;
  auto memory = locks ? terms.manager->acquire_pinned_or_not(context, wanted, terms.named())
                      : terms.manager->acquire(context, host_device(), Location::host, wanted, terms.named());
  if (!memory) return {};
  if (locks) {
    // Documented: pageable memory may serve instead, and is_pinned() says so.
    bool const locked = memory->location() == Location::pinned;
    parts_->pinned.store(locked, std::memory_order_relaxed);
    if (!locked) terms.manager->note_refused_pinning();
  }
  auto const block = memory->memory();
  auto const skipped = in_pages ? (page - (block.object + block.offset) % page) % page : 0;
  return {*std::move(memory), block.window(skipped, whole_pages)};
}

std::shared_ptr<Replica> ReplicaAllocator::host_replica(AccessContext& context) const {
  auto const& there = parts_->replicas.in_memory_of_host();
  if (there) return there;
  if (parts_->terms.options.shared) return new_in_segment(context);
  if (parts_->file == nullptr) return new_on_host(context, parts_->replicas.bytes());
  if (parts_->is_mapped()) return std::make_shared<Replica>(ReplicaMemory(host_device(), parts_->file->map()));
  return new_in_parts();
}

std::shared_ptr<SharedMemory> ReplicaAllocator::new_segment(AccessContext& context) const {
  auto const& terms = parts_->terms;
  auto const bytes = parts_->replicas.bytes();
  auto block = terms.manager->acquire(context, host_device(), Location::host, bytes, terms.named());
  if (!block) return nullptr;
  parts_->become_resident();  // the threads that end turns keep the buffer beside its owners
  return SharedMemory::make(terms.display_name(), bytes, {*std::move(block), terms.manager});
}

std::shared_ptr<Replica> ReplicaAllocator::new_in_segment(AccessContext& context) const {
  auto memory = new_segment(context);
  if (!memory) return nullptr;
  auto replica = replica_over(memory);
  parts_->terms.count_in(*replica);
  // What other processes write cannot be told from what users of this one do; they say what they have written.
  parts_->watch.track_by_access();
  parts_->watch.never_watch();
  parts_->replicas.places.host_has_its_own();
  parts_->shared = std::move(memory);
  return replica;
}

std::shared_ptr<Replica> ReplicaAllocator::replica_over(std::shared_ptr<SharedMemory> const& memory) {
  ReplicaMemory made(host_device(), memory->data(), memory->size(), Location::host);
  made.own(Ownership::take([memory](void*) {}));
  return std::make_shared<Replica>(std::move(made));
}

void ReplicaAllocator::adopt_mapped() const {
  auto& replicas = parts_->replicas;
  auto const& host = replicas.host();
  if (!host || host->mapped() == nullptr || replicas.holds(host_place, replicas.whole())) return;
  auto& coherence = replicas.coherence;
  coherence.commit_certain(coherence.plan_access(host_place, replicas.whole(), Intent::read, replicas.places.cost()));
}

std::shared_ptr<Replica> ReplicaAllocator::new_in_parts() const {
  auto const bytes = parts_->replicas.bytes();
  auto const page = system_page_bytes();
  auto const cell = std::max(page, cell_bytes(bytes, parts_->terms.manager->limit(host_device(), Location::host)));
  // Elements are aligned in memory wherever they are in the file; where that is at no multiple of this, bytes of one
  // page of it lie in two of memory.
  constexpr std::size_t alignment = 64;
  auto const skew = parts_->file->offset() % page / alignment * alignment;
  auto reserved = std::make_shared<ReservedMemory>(bytes, skew, cell, parts_->terms.manager);
  return std::make_shared<Replica>(ReplicaMemory(host_device(), std::move(reserved)));
}

bool ReplicaAllocator::commit(AccessContext& context, Replica& replica, ByteRange range) const {
  auto* const memory = replica.reserved();
  if (memory == nullptr) return true;
  auto const& terms = parts_->terms;
  auto const [first, last] = memory->cells_of(range);
  auto& clock = terms.manager->use_clock(host_device());
  // What cannot be there at once is refused before others give anything.
  auto const wanted = (last - first) * memory->cell_bytes();
  if (last - first > 1 && wanted > terms.manager->limit(host_device(), Location::host)) {
    if (!terms.manager->acquire(context, host_device(), Location::host, wanted, terms.named())) return false;
  }
  bool told = false;
  for (auto cell = first; cell < last; ++cell) {
    auto const part = memory->range_of(cell);
    auto const used = std::min(part.end, range.end) - std::max(part.begin, range.begin);
    if (!context.again()) memory->history(cell).used(clock, used);
    if (memory->is_committed(cell)) continue;
    auto block = terms.manager->acquire(context, host_device(), Location::host, memory->cell_bytes(), terms.named());
    if (!block) return false;
    if (!std::exchange(told, true)) memory->will_fill({cell, last});
    memory->commit(cell, *std::move(block));
  }
  return true;
}

std::shared_ptr<Replica> ReplicaAllocator::new_on_device(AccessContext& context, Device& device, ByteRange part,
                                                         Queue& queue) const {
  auto const& terms = parts_->terms;
  parts_->become_resident();
  auto request = terms.named();
  request.queue = &queue;
  auto block = terms.manager->acquire(context, device, Location::device, part.size(), request);
  if (!block) return nullptr;
  context.demand().took(*terms.manager, part.size());
  std::shared_ptr<Replica> replica;
  try {
    replica = std::make_shared<Replica>(ReplicaMemory(device, *std::move(block), part.begin));
    terms.count_in(*replica);
    // The block may still be in use by earlier work of this queue, or by what the pool made it wait for with a ticket
    // of its own: work of other queues goes behind it.
    replica->work().perhaps_written_by(part, queue.record());
  } catch (...) {
    static_cast<void>(queue.record().wait_for_error());  // it goes back at once, for any other request
    throw;
  }
  return replica;
}

void ReplicaAllocator::watch_host() const {
  auto& replicas = parts_->replicas;
  auto const& host = replicas.host();
  // Devices that share it may have come first, and are writing to it.
  if (parts_->watch.tracking() == Tracking::pages) host->work().wait_for_host_access(replicas.whole(), true);
  if (!parts_->watch.watches()) return parts_->watch.begin(nullptr);
  parts_->watch.begin(parts_->watch.make(host, replicas.bytes(), parts_->terms.display_name()));
  auto* const writes = parts_->watch.writes();
  replicas.for_each_write_to_host_memory([&](ByteRange range, Event event) { writes->expect_device(range, event); });
}

bool ReplicaAllocator::ensure_host(AccessContext& context, ByteRange range) const {
  auto& replicas = parts_->replicas;
  if (replicas.coherence.has_storage(host_place)) {
    if (!replicas.host()) return true;
    note_use(*replicas.host());
    if (parts_->is_mapped()) adopt_mapped();
    return commit(context, *replicas.host(), range);
  }
  if (replicas.bytes() != 0) {
    auto replica = host_replica(context);
    if (!replica) return false;
    note_use(*replica);
    replica->apply_advice(parts_->advice);
    replicas.put(host_place, std::move(replica));
    watch_host();
  }
  replicas.coherence.add_storage(host_place);
  if (parts_->is_mapped()) adopt_mapped();
  return !replicas.host() || commit(context, *replicas.host(), range);
}

bool ReplicaAllocator::begin_data_on_host(AccessContext& context) const {
  if (!ensure_host(context, parts_->replicas.whole())) return false;
  auto& coherence = parts_->replicas.coherence;
  auto plan = coherence.plan_access(host_place, {}, Intent::read, parts_->replicas.places.cost());
  Commits(*parts_).commit(std::move(plan), {});
  return true;
}

bool ReplicaAllocator::ensure_device(AccessContext& context, Place place, ByteRange range, Queue& queue) const {
  auto& replicas = parts_->replicas;
  // Pages of a file are the host's first of all, where they are valid as they come.
  bool const in_pages = parts_->is_mapped() && replicas.places.in_host_memory(place);
  if (in_pages && !ensure_host(context, range)) return false;
  bool const window = replicas.places[place].window.has_value();
  if (window && !replicas.coherence.has_data() && !begin_data_on_host(context)) return false;
  if (replicas.coherence.has_storage(place)) {
    auto const& there = replicas.at(place);
    if (!there) return true;
    note_use(*there);
    return commit(context, *there, range);
  }
  if (replicas.bytes() != 0) {
    auto replica = replicas.places.is_file(place) ? new_in_file() : device_replica(context, place, queue);
    if (!replica) return false;
    note_use(*replica);
    replica->apply_advice(parts_->advice);
    replicas.put(place, std::move(replica));
    replicas.windows_may_go = replicas.places.has_windows();
    parts_->publish();  // others that need the device's memory count on it from now on
  }
  replicas.coherence.add_storage(place);
  return !replicas.at(place) || commit(context, *replicas.at(place), range);
}

std::shared_ptr<Replica> ReplicaAllocator::device_replica(AccessContext& context, Place place, Queue& queue) const {
  auto& device = *parts_->replicas.places[place].device;
  if (parts_->replicas.places.shares(device)) return host_replica(context);
  return new_on_device(context, device, parts_->replicas.reach(place), queue);
}

std::shared_ptr<Replica> ReplicaAllocator::new_in_file() const {
  auto file = std::make_shared<SpillFile>(parts_->terms.spill_files->shared_from_this(), parts_->replicas.bytes());
  return std::make_shared<Replica>(ReplicaMemory(std::shared_ptr<FileMemory>(std::move(file))));
}

bool ReplicaAllocator::ensure(AccessContext& context, Place place, ByteRange range) const {
  if (place == host_place) return ensure_host(context, range);
  return ensure_device(context, place, range, parts_->replicas.places[place].device->default_queue());
}

void ReplicaAllocator::note_use(Replica const& replica) const {
  auto const& terms = parts_->terms;
  if (terms.spill_files == nullptr || !replica.serves_host() || replica.reserved() != nullptr) return;
  auto& uses = parts_->host_uses;
  if (!uses) {
    uses = std::make_unique<BufferParts::HostUses>(BufferParts::HostUses{terms.manager->use_clock(host_device())});
  }
  uses->history.used(uses->clock, parts_->replicas.bytes());
}

}  // namespace unimem::detail
