#include "core/failing_allocations.hpp"

#include <cstdlib>
#include <new>

namespace {

thread_local std::size_t left = 0;

}  // namespace

void unimem::testing::fail_allocation(std::size_t n) noexcept {
  left = n;
}

bool unimem::testing::allocation_is_to_fail() noexcept {
  return left > 0;
}

void* operator new(std::size_t bytes) {
  if (left > 0 && --left == 0) throw std::bad_alloc();
  if (auto* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  if (left > 0 && --left == 0) throw std::bad_alloc();
  auto const multiple = static_cast<std::size_t>(alignment);
  if (auto* const memory = std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple)) return memory;
  throw std::bad_alloc();
}

void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  try {
    return ::operator new(bytes);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}

void* operator new(std::size_t bytes, std::align_val_t alignment, std::nothrow_t const&) noexcept {
  try {
    return ::operator new(bytes, alignment);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

// The standard library's others come to those above, and a sanitizer's would not.
void* operator new[](std::size_t bytes) {
  return ::operator new(bytes);
}
void* operator new[](std::size_t bytes, std::nothrow_t const& none) noexcept {
  return ::operator new(bytes, none);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return ::operator new(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, std::nothrow_t const& none) noexcept {
  return ::operator new(bytes, alignment, none);
}
void operator delete(void* memory, std::nothrow_t const&) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t, std::nothrow_t const&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::nothrow_t const&) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t, std::nothrow_t const&) noexcept {
  std::free(memory);
}
