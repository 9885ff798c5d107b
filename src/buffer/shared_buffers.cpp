#include "buffer/shared_buffers.hpp"

#include <unimem/buffer/detail/buffer_core.hpp>

#include "core/fork.hpp"

namespace unimem::detail {

SharedBuffers& SharedBuffers::of_this_process() {
  static constinit PerProcess<SharedBuffers> instance;
  return instance.get();
}

std::shared_ptr<BufferCore> SharedBuffers::find(std::span<UniqueFd const> descriptors, std::size_t bytes) {
  auto const identity = SharedMemory::identity_of(descriptors);
  if (!identity) return nullptr;
  std::shared_ptr<BufferCore> core;  // goes without the lock: it may be the last owner
  std::scoped_lock const lock(mutex_);
  auto const known = buffers_.find(*identity);
  if (known != buffers_.end()) core = known->second.lock();
  return core && stands_on(*core, *identity) && core->size_bytes() == bytes ? core : nullptr;
}

std::shared_ptr<BufferCore> SharedBuffers::keep(std::shared_ptr<BufferCore> const& core) {
  auto const memory = core->shared_memory();
  if (memory == nullptr) return core;  // another thread has freed it
  auto const& identity = memory->identity();
  std::shared_ptr<BufferCore> other;
  std::scoped_lock const lock(mutex_);
  std::erase_if(buffers_, [](auto const& one) { return one.second.expired(); });
  auto& known = buffers_[identity];
  other = known.lock();
  if (other && stands_on(*other, identity)) return other;
  known = core;
  return core;
}

/// It may have been freed, and be used again.
bool SharedBuffers::stands_on(BufferCore const& core, SharedMemory::Identity const& identity) {
  auto const memory = core.shared_memory();
  return memory && memory->identity() == identity;
}

}  // namespace unimem::detail
