#include "device/cuda/host_flags.hpp"

#include <new>

namespace unimem::detail::cuda {

std::shared_ptr<HostFlags::Flag> HostFlags::take() {
  std::unique_lock lock{mutex_};
  while (free_.empty()) {
    // Without the lock: the driver may wait for work in there, which stands behind a word whose last holder wants it.
    lock.unlock();
    void* page = nullptr;
    health_.check(gpu_.driver.cuMemHostAlloc(&page, words_at_once * sizeof(std::uint32_t),
                                             host_alloc_portable | host_alloc_device_map),
                  "cuMemHostAlloc");
    lock.lock();
    try {
      free_.reserve(made_ + words_at_once);  // so that nothing has to be had when a word goes back
    } catch (std::bad_alloc const&) {
      lock.unlock();
      health_.note(gpu_.driver.cuMemFreeHost(page));
      throw;
    }
    made_ += words_at_once;
    for (std::size_t i = 0; i < words_at_once; ++i) free_.push_back(static_cast<std::uint32_t*>(page) + i);
  }
  auto* const word = free_.back();
  auto flag = std::make_shared<Flag>(*this, word);
  free_.pop_back();
  return flag;
}

void HostFlags::put_back(std::uint32_t* word) noexcept {
  std::lock_guard const lock{mutex_};
  free_.push_back(word);
}

}  // namespace unimem::detail::cuda
