#include "buffer/storage.hpp"

#include <unimem/core/log.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/fast_lease.hpp"
#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"
#include "device/current_task.hpp"
#include "device/host_pinning.hpp"
#include "device/watched_wait.hpp"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace unimem::detail {

Storage::Storage(Device& device, Allocation allocation)
    : device_(&device), allocation_(std::move(allocation)), memory_(allocation_.memory()) {}

Storage::Storage(Device& host_device, Allocation allocation, DeviceMemory part)
    : device_(&host_device), allocation_(std::move(allocation)), memory_(part), by_address_(part) {}

std::shared_ptr<Storage> Storage::unified(Device& device, Allocation allocation) {
  auto storage = std::make_shared<Storage>(device, std::move(allocation));
  auto* const address = device.address(storage->memory_);
  storage->by_address_ = {reinterpret_cast<std::uintptr_t>(address), 0, storage->memory_.bytes};
  return storage;
}

Storage::Storage(Device& host_device, void* pointer, std::size_t bytes, Location location)
    : device_(&host_device),
      wrapped_at_(location),
      memory_{reinterpret_cast<std::uintptr_t>(pointer), 0, bytes},
      by_address_(memory_) {}

void* Storage::address_of(DeviceMemory window) const {
  if (serves_host() && window.object == by_address_.object) return detail::host_address(window);
  return device_->address(window);
}

Storage::~Storage() {
  try {
    apply_advice({});                // the memory's next owner has given no such advice
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch): hints that were not taken back are hints still
  }
  if (zero_at_end_ && allocation_) {
    try {
      zero();
    } catch (std::exception const& error) {
      log(LogLevel::error, "memory that was to be overwritten with zeros goes back to its pool as it is:");
      log(LogLevel::error, error.what());
    }
  }
  auto const last = last_work();
  if (allocation_ && !locked_) {
    allocation_.release(UNIMEM_MUTANT(ticket_dropped) ? Event{} : last);
    return;
  }
  Remains remains{std::move(allocation_), std::move(ownership_), reinterpret_cast<void*>(memory_.object),
                  locked_ ? host_address() : nullptr};
  // No destructor waits on a thread that runs work: what it waits for may be that very work.
  if (CurrentTask::of_this_thread() != nullptr && !last.ready()) {
    let_go_later(std::move(remains), last);
    return;
  }
  static_cast<void>(last.wait_for_error());  // a driver may still be reading what must not be unlocked under it
  remains.let_go(last);
}

void Storage::Remains::let_go(Event last) noexcept {
  if (locked != nullptr) HostPinning::instance().unpin(locked);
  if (allocation) return allocation.release(last);
  if (!ownership.deleter()) return;
  try {
    ownership.deleter()(pointer);
  } catch (std::exception const& error) {
    log(LogLevel::error, "the deleter of wrapped memory has thrown:");
    log(LogLevel::error, error.what());
  } catch (...) {
    log(LogLevel::error, "the deleter of wrapped memory has thrown something that is no std::exception");
  }
}

void Storage::let_go_later(Remains remains, Event last) noexcept {
  if (!remains.allocation && !remains.ownership.deleter()) return;  // its owner's, and there is no deleter to call
  std::shared_ptr<Remains> kept;
  try {
    kept = std::make_shared<Remains>(std::move(remains));
    auto const end = [kept](Range, std::size_t, std::size_t, std::span<const HostArgument>) { kept->let_go({}); };
    auto& queue = host_device().waiting_queue();
    queue.wait(last);
    queue.run(host_device().compile({"the end of a buffer's memory", {}, end}), Range{1}, {});
  } catch (std::exception const& error) {
    // Locked and with its owner it stays; a block that is not its pool's again would be lost.
    if (auto& allocation = kept ? kept->allocation : remains.allocation; allocation) allocation.release(last);
    log(LogLevel::error, "memory that was to be given back when its work has ended stays with the process:");
    log(LogLevel::error, error.what());
  }
}

bool Storage::can_be_locked() const noexcept {
  if (!allocation_ || location() != Location::host) return false;
  static auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto const begin = reinterpret_cast<std::uintptr_t>(host_address());
  auto const block = allocation_.memory();
  auto const end_of_block = block.object + block.offset + allocation_.capacity();
  return begin % page == 0 && (begin + memory_.bytes + page - 1) / page * page <= end_of_block;
}

std::string Storage::lock_in_place() {
  if (locked_) return {};
  auto refusal = HostPinning::instance().pin(host_address(), memory_.bytes);
  locked_ = refusal.empty();
  return refusal;
}

void Storage::heed_slow(AdviceBook const& advice) {
  for (auto const& [what, place, range] : heeded_.beyond(advice)) {
    device_->advise(window(range), location(), what, place, false);
  }
  for (auto const& [what, place, range] : advice.beyond(heeded_)) {
    device_->advise(window(range), location(), what, place, true);
  }
  heeded_ = advice;
}

void Storage::spill(SpilledBytes spilled) noexcept {
  // Off the book as well; what comes back is entered anew.
  std::destroy_at(&usage_);
  std::construct_at(&usage_);
  heeded_ = {};
  spilled_ = std::move(spilled);
  wrapped_at_ = allocation_.location();
  memory_ = by_address_ = {};
  allocation_.release({});
}

void Storage::reload(Allocation allocation, DeviceMemory part, bool wanted) {
  if (wanted) spilled_.restore({static_cast<std::byte*>(detail::host_address(part)), spilled_.size()});
  spilled_ = {};
  allocation_ = std::move(allocation);
  memory_ = by_address_ = part;
}

void Storage::read_into(std::span<std::byte> target, std::size_t offset) {
  if (away()) return spilled_.read_into(target, offset);
  wait_to_read({offset, offset + target.size()});
  std::memcpy(target.data(), static_cast<std::byte const*>(host_address()) + offset, target.size());
}

/// One event for all work here: a block takes one ticket.
Event Storage::last_work() noexcept {
  if (others_on_ == nullptr && hazards_.empty()) return {};
  std::vector<Event> events;
  try {
    note_others();
    events = hazards_.unfinished();
    // Where the host works too, by the host, whose queues wait for any work without holding up other work.
    return (serves_host() ? host_device() : *device_).waiting_queue().join(events);
  } catch (std::exception const&) {
    // No memory for that, or no queue any more: then here and now.
    for (auto const event : events) {
      if (!waits_for_itself(event)) static_cast<void>(event.wait_for_error());
    }
    return {};
  }
}

void Storage::zero() {
  static constexpr std::array<std::byte, 1> zero{};
  auto& queue = (serves_host() ? host_device() : *device_).default_queue();
  order_write(queue, whole());
  hazards_.reserve(1);
  hazards_.written_by(whole(), queue.fill(serves_host() ? by_address_ : memory_, zero));
}

void Storage::order_read(Queue& queue, ByteRange range) {
  if (others_on_ != nullptr && others_queue_ != queue.id()) note_others();
  hazards_.order_read(queue, range);
}

void Storage::order_write(Queue& queue, ByteRange range) {
  if (others_on_ != nullptr && others_queue_ != queue.id()) note_others();
  hazards_.order_write(queue, range);
}

void Storage::order_read(Queue& queue, ByteRanges const& ranges) {
  if (others_on_ != nullptr && others_queue_ != queue.id()) note_others();
  hazards_.order_read(queue, ranges);
}

void Storage::order_write(Queue& queue, ByteRanges const& ranges) {
  if (others_on_ != nullptr && others_queue_ != queue.id()) note_others();
  hazards_.order_write(queue, ranges);
}

void Storage::wait_to_read(ByteRange range) {
  note_others();
  refuse_endless_wait(range, false);
  hazards_.wait_to_read(range);
}

void Storage::wait_to_write(ByteRange range) {
  note_others();
  refuse_endless_wait(range, true);
  hazards_.wait_to_write(range);
}

void Storage::refuse_endless_wait(ByteRange range, bool readers_too) const {
  if (hazards_.empty()) return;
  bool const in_work = CurrentTask::of_this_thread() != nullptr;
  if (!in_work && !is_watched()) return;
  std::vector<Event> events;
  hazards_.add_unfinished(range, readers_too, events);
  for (auto const event : events) in_work ? wait_unless_endless(event) : wait_watched(event);
}

void Storage::used_by_others(Device& device, Queue const* queue) {
  // Two sets of strangers at once are strangers anywhere on their devices.
  auto const id = queue == nullptr ? 0 : queue->id();
  bool const elsewhere = others_on_ != nullptr && others_on_ != &device;
  if (elsewhere) {
    if (std::ranges::find(also_on_, &device) == also_on_.end()) also_on_.push_back(&device);
    others_queue_ = 0;
    return;
  }
  others_queue_ = others_on_ == nullptr || others_queue_ == id ? id : 0;
  others_on_ = &device;
}

void Storage::hand_over() {
  note_others();
  exported_ = exported_for_writing_ = false;
  if (hazards_.idle()) return hazards_.forget_ended();
  Hazards behind;
  for (auto const event : hazards_.unfinished()) {
    if (UNIMEM_MUTANT(recycled_work_forgotten)) break;
    behind.perhaps_written_by(whole(), event);
  }
  hazards_ = std::move(behind);
}

bool Storage::leased() const noexcept {
  if (leases_.load(std::memory_order_acquire) != 0) return true;
  auto const* const fast_lease = fast_lease_.load(std::memory_order_acquire);
  return fast_lease != nullptr && !UNIMEM_MUTANT(leases_overlooked) && fast_lease->entered();
}

void Storage::note_others() {
  if (others_on_ == nullptr || UNIMEM_MUTANT(strangers_forgotten)) return;
  // Before looking for their work: a lease that ends in between has submitted what that look may have missed.
  bool const others_stay = leased();
  for (auto const event : others_on_->unfinished()) {
    if (others_queue_ == 0 || event.queue_id() == others_queue_) hazards_.perhaps_written_by(whole(), event);
  }
  for (auto* const further : also_on_) {
    for (auto const event : further->unfinished()) hazards_.perhaps_written_by(whole(), event);
  }
  if (others_stay) return;
  others_on_ = nullptr;
  also_on_.clear();
}

}  // namespace unimem::detail
