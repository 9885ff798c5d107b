#include <unimem/buffer/device_lease.hpp>

#include "buffer/fast_lease.hpp"
#include "buffer/replica.hpp"

#include <utility>

namespace unimem {

using detail::Replica;

DeviceLease::DeviceLease(std::shared_ptr<Replica> replica, DeviceMemory memory)
    : replica_(std::move(replica)), memory_(memory) {
  if (replica_) replica_->add_lease(memory_);
}

DeviceLease& DeviceLease::operator=(DeviceLease&& other) noexcept {
  if (this != &other) {
    end();
    replica_ = std::move(other.replica_);
    cell_ = std::exchange(other.cell_, nullptr);
    memory_ = std::exchange(other.memory_, {});
  }
  return *this;
}

DeviceLease::~DeviceLease() {
  end();
}

WorkHold::WorkHold(std::shared_ptr<Replica> replica) noexcept : replica_(std::move(replica)) {
  if (replica_) replica_->holds().begin_work();
}

WorkHold::~WorkHold() {
  if (replica_) replica_->holds().end_work();
}

WorkHold LeaseOption::hold() const {
  auto replica = replica_.lock();
  return replica && !replica->serves_host() ? WorkHold(std::move(replica)) : WorkHold{};
}

DeviceLease LeaseOption::take() const {
  auto replica = replica_.lock();
  return replica ? DeviceLease(std::move(replica), memory_) : DeviceLease{};
}

void* DeviceLease::address() const {
  if (cell_ != nullptr) return cell_->replica().address_of(memory_);
  return replica_ ? replica_->address_of(memory_) : nullptr;
}

void DeviceLease::end() noexcept {
  if (cell_ != nullptr) {
    std::exchange(cell_, nullptr)->leave();
    memory_ = {};
  }
  if (!replica_) return;
  replica_->end_lease(memory_);
  replica_.reset();
  memory_ = {};
}

}  // namespace unimem
