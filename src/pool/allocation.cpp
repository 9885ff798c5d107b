#include <unimem/pool/allocation.hpp>

#include "pool/pool_core.hpp"

#include <utility>

namespace unimem {

Allocation& Allocation::operator=(Allocation&& other) noexcept {
  if (this != &other) {
    release();
    block_ = std::exchange(other.block_, nullptr);
    size_ = std::exchange(other.size_, 0);
    begin_ = other.begin_;
  }
  return *this;
}

void* Allocation::data() const {
  return block_ == nullptr ? nullptr : device().address(memory());
}

DeviceMemory Allocation::memory() const noexcept {
  return block_ == nullptr ? DeviceMemory{} : block_->memory.window(begin_, size_);
}

std::size_t Allocation::capacity() const noexcept {
  return block_ == nullptr ? 0 : block_->capacity() - begin_;
}

Device& Allocation::device() const noexcept {
  return block_->pool->device();
}

Location Allocation::location() const noexcept {
  return block_->pool->location();
}

namespace detail {

void release(Block& block, Event last_use) noexcept {
  block.pool->release(block, last_use);
}

}  // namespace detail

}  // namespace unimem
