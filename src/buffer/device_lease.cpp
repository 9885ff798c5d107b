#include <unimem/buffer/device_lease.hpp>

#include "buffer/fast_lease.hpp"
#include "buffer/storage.hpp"

#include <utility>

namespace unimem {

DeviceLease::DeviceLease(std::shared_ptr<detail::Storage> storage, DeviceMemory memory)
    : storage_(std::move(storage)), memory_(memory) {
  if (storage_) storage_->add_lease();
}

DeviceLease& DeviceLease::operator=(DeviceLease&& other) noexcept {
  if (this != &other) {
    end();
    storage_ = std::move(other.storage_);
    cell_ = std::exchange(other.cell_, nullptr);
    memory_ = std::exchange(other.memory_, {});
  }
  return *this;
}

DeviceLease::~DeviceLease() {
  end();
}

WorkHold::WorkHold(std::shared_ptr<detail::Storage> storage) noexcept : storage_(std::move(storage)) {
  if (storage_) storage_->begin_work();
}

WorkHold::~WorkHold() {
  if (storage_) storage_->end_work();
}

WorkHold LeaseOption::hold() const {
  auto storage = storage_.lock();
  return storage && !storage->serves_host() ? WorkHold(std::move(storage)) : WorkHold{};
}

DeviceLease LeaseOption::take() const {
  auto storage = storage_.lock();
  return storage ? DeviceLease(std::move(storage), memory_) : DeviceLease{};
}

void* DeviceLease::address() const {
  if (cell_ != nullptr) return cell_->storage().address_of(memory_);
  return storage_ ? storage_->address_of(memory_) : nullptr;
}

void DeviceLease::end() noexcept {
  if (cell_ != nullptr) {
    std::exchange(cell_, nullptr)->leave();
    memory_ = {};
  }
  if (!storage_) return;
  storage_->end_lease();
  storage_.reset();
  memory_ = {};
}

}  // namespace unimem
