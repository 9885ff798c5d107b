#include "buffer/replica_memory.hpp"

#include <unimem/core/log.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/host_device.hpp"
#include "core/system_page.hpp"
#include "device/host_pinning.hpp"
#include "manager/file_device.hpp"

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>

namespace unimem::detail {

ReplicaMemory::ReplicaMemory(Device& device, Allocation allocation, std::size_t begin)
    : device_(&device), allocation_(std::move(allocation)), begin_(begin), memory_(allocation_.memory()) {}

ReplicaMemory::ReplicaMemory(Device& host_device, Allocation allocation, DeviceMemory part)
    : device_(&host_device), allocation_(std::move(allocation)), memory_(part), by_address_(part) {}

ReplicaMemory::ReplicaMemory(Device& host_device, void* pointer, std::size_t bytes, Location location)
    : device_(&host_device),
      wrapped_at_(location),
      memory_{reinterpret_cast<std::uintptr_t>(pointer), 0, bytes},
      by_address_(memory_) {}

ReplicaMemory::ReplicaMemory(Device& host_device, std::shared_ptr<ReservedMemory> reserved)
    : device_(&host_device),
      reserved_(reserved.get()),
      of_system_(std::move(reserved)),
      memory_{reinterpret_cast<std::uintptr_t>(reserved_->address()), 0, reserved_->bytes()},
      by_address_(memory_) {}

ReplicaMemory::ReplicaMemory(Device& host_device, std::shared_ptr<FileMapping const> mapped)
    : device_(&host_device),
      mapped_(mapped.get()),
      of_system_(std::move(mapped)),
      memory_{reinterpret_cast<std::uintptr_t>(mapped_->address()), 0, mapped_->bytes()},
      by_address_(memory_) {}

ReplicaMemory::ReplicaMemory(std::shared_ptr<FileMemory> file)
    : device_(&FileDevice::instance()),
      file_(file.get()),
      of_system_(std::move(file)),
      wrapped_at_(Location::device),
      memory_(file_->memory()) {}

void ReplicaMemory::serve_host() {
  auto* const address = device_->address(memory_);
  by_address_ = {reinterpret_cast<std::uintptr_t>(address), 0, memory_.bytes};
}

void* ReplicaMemory::address_of(DeviceMemory window) const {
  if (serves_host() && window.object == by_address_.object) return detail::host_address(window);
  return device_->address(window);
}

bool ReplicaMemory::can_be_locked() const noexcept {
  if (!allocation_ || location() != Location::host) return false;
  auto const page = system_page_bytes();
  auto const begin = reinterpret_cast<std::uintptr_t>(host_address());
  auto const block = allocation_.memory();
  auto const end_of_block = block.object + block.offset + allocation_.capacity();
  return begin % page == 0 && (begin + memory_.bytes + page - 1) / page * page <= end_of_block;
}

std::string ReplicaMemory::lock_in_place() {
  if (locked_) return {};
  auto refusal = HostPinning::instance().pin(host_address(), memory_.bytes);
  locked_ = refusal.empty();
  return refusal;
}

struct ReplicaMemory::Remains {
  Allocation allocation;
  Ownership ownership;
  void* pointer = nullptr;                      ///< of wrapped memory
  void* locked = nullptr;                       ///< where it is to be unlocked
  std::shared_ptr<void const> of_the_system{};  ///< reserved, or mapped: nobody waits for it

  /// `last` may be pending only where the memory goes back to a pool.
  void let_go(Event last) noexcept {
    if (locked != nullptr) HostPinning::instance().unpin(locked);
    if (allocation) return allocation.release(last);
    of_the_system.reset();
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
};

void ReplicaMemory::let_go(Event last) noexcept {
  if (file_) return;  // the work keeps it
  if (allocation_ && !locked_) {
    allocation_.release(last);
    return;
  }
  reserved_ = nullptr;
  mapped_ = nullptr;
  Remains remains{std::move(allocation_), std::move(ownership_), reinterpret_cast<void*>(memory_.object),
                  locked_ ? host_address() : nullptr, std::move(of_system_)};
  // No destructor waits on a thread that runs work: what it waits for may be that very work.
  // Nor does it wait for memory's sake alone: the system has such memory back, and no other owner waits for it.
  bool const may_be_late = is_in_work() || remains.of_the_system;
  if (may_be_late && !last.ready()) {
    let_go_later(std::move(remains), last);
    return;
  }
  static_cast<void>(last.wait_for_error());  // a driver may still be reading what must not be unlocked under it
  remains.let_go(last);
}

void ReplicaMemory::let_go_later(Remains remains, Event last) noexcept {
  bool const owners = !remains.allocation && !remains.of_the_system && !remains.ownership.deleter();
  if (owners) return;  // and there is no deleter to call
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
    if (kept ? kept->of_the_system : remains.of_the_system) static_cast<void>(last.wait_for_error());
    log(LogLevel::error, "memory that was to be given back when its work has ended stays with the process:");
    log(LogLevel::error, error.what());
  }
}

}  // namespace unimem::detail
