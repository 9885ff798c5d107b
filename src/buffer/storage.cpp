#include "buffer/storage.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {

Storage::Storage(Device& device, Allocation allocation)
    : device_(&device), allocation_(std::move(allocation)), memory_(allocation_.memory()) {}

Storage::Storage(Device& host_device, void* pointer, std::size_t bytes, Ownership ownership)
    : device_(&host_device),
      ownership_(std::move(ownership)),
      memory_{reinterpret_cast<std::uintptr_t>(pointer), 0, bytes} {}

Storage::~Storage() {
  wait_for_others();
  // A block takes one ticket. The others, where several queues read at once, are waited for here.
  Event last = last_write_;
  for (auto const read : reads_) {
    if (!last.ready()) static_cast<void>(last.wait_for_error());
    last = read;
  }
  if (allocation_) {
    allocation_.release(last);
    return;
  }
  if (ownership_.deleter()) {
    static_cast<void>(last.wait_for_error());
    ownership_.deleter()(reinterpret_cast<void*>(memory_.object));
  } else {
    // Borrowed memory is its owner's again when the buffer is gone, so no work may still be reading it.
    static_cast<void>(last.wait_for_error());
  }
}

void Storage::order_read(Queue& queue) {
  if (others_on_ != nullptr && others_queue_ != queue.id()) wait_for_others();
  queue.wait(last_write_);
}

void Storage::order_write(Queue& queue) {
  order_read(queue);
  for (auto const read : reads_) queue.wait(read);
}

void Storage::wait_to_read() {
  wait_for_others();
  static_cast<void>(last_write_.wait_for_error());
}

void Storage::wait_to_write() {
  wait_to_read();
  for (auto const read : reads_) static_cast<void>(read.wait_for_error());
  reads_.clear();
}

void Storage::read_by(Event event) {
  std::erase_if(reads_, [&](Event read) { return read.queue_id() == event.queue_id() || read.ready(); });
  reads_.push_back(event);
}

void Storage::written_by(Event event) {
  last_write_ = event;
  reads_.clear();
}

void Storage::used_by_others(Device& device, Queue const* queue) {
  // Two sets of strangers at once are waited for as strangers anywhere.
  auto const id = queue == nullptr ? 0 : queue->id();
  others_queue_ = others_on_ == nullptr || others_queue_ == id ? id : 0;
  others_on_ = &device;
}

bool Storage::idle() const noexcept {
  return others_on_ == nullptr && last_write_.ready() && std::ranges::all_of(reads_, &Event::ready);
}

void Storage::wait_for_others() noexcept {
  if (others_on_ == nullptr) return;
  others_on_->synchronize();
  if (!leased()) others_on_ = nullptr;
}

}  // namespace unimem::detail
