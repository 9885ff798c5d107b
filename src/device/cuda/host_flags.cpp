#include "device/cuda/host_flags.hpp"

namespace unimem::detail::cuda {

std::shared_ptr<HostFlags::Flag> HostFlags::take() {
  std::lock_guard const lock{mutex_};
  if (free_.empty()) {
    free_.reserve(made_ + words_at_once);  // so that nothing has to be had when a word goes back
    void* page = nullptr;
    health_.check(gpu_.driver.cuMemHostAlloc(&page, words_at_once * sizeof(std::uint32_t),
                                             host_alloc_portable | host_alloc_device_map),
                  "cuMemHostAlloc");
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
