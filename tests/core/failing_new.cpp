// Preloaded into a program that was not made for it, an interpreter with the bindings: lets one `operator new` fail.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> left{0};
std::atomic<bool> in_all_threads{false};
thread_local bool in_this_thread = false;

bool fails() noexcept {
  if (!in_this_thread && !in_all_threads.load(std::memory_order_relaxed)) return false;
  return left.load(std::memory_order_relaxed) > 0 && left.fetch_sub(1, std::memory_order_relaxed) == 1;
}

void* given(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes == 0 ? 1 : bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* given_or_thrown(std::size_t bytes, std::size_t alignment) {
  if (auto* const memory = given(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

/// From now on the n-th allocation fails, of this thread or of all; 0: none does.
extern "C" [[gnu::visibility("default")]] void fail_new(long n, int all_threads) noexcept {
  in_all_threads.store(n > 0 && all_threads != 0, std::memory_order_relaxed);
  in_this_thread = n > 0;
  left.store(n, std::memory_order_relaxed);
}

/// Whether the allocation that is to fail has not come yet.
extern "C" [[gnu::visibility("default")]] int new_is_to_fail() noexcept {
  return left.load(std::memory_order_relaxed) > 0 ? 1 : 0;
}

void* operator new(std::size_t bytes) {
  return given_or_thrown(bytes, 0);
}
void* operator new[](std::size_t bytes) {
  return given_or_thrown(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return given_or_thrown(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return given_or_thrown(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  return given(bytes, 0);
}
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept {
  return given(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, std::nothrow_t const&) noexcept {
  return given(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
