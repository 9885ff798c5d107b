#include "device/host_memory.hpp"

#include "core/system_page.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace unimem::detail {
namespace {

constexpr std::size_t round_to(std::size_t bytes, std::size_t alignment) noexcept {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

/// What a mapping of `bytes` is aligned to: a whole huge page where one fits, so that huge pages can be used from its
/// first byte.
std::size_t mapping_alignment(std::size_t bytes) noexcept {
  return bytes >= huge_page_bytes ? huge_page_bytes : system_page_bytes();
}

}  // namespace

void* take_host_memory(std::size_t bytes, bool own_pages) noexcept {
  if (!own_pages && bytes < mapped_from_bytes) {
    return ::operator new(bytes, std::align_val_t{small_alignment}, std::nothrow);
  }
  auto* const memory = map_addresses(bytes, mapping_alignment(bytes), 0, PROT_READ | PROT_WRITE);
  // Advice: where huge pages are switched off the memory is as good, only slower to touch first.
  if (memory != nullptr && bytes >= huge_page_bytes) madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

bool leave_out_of_dumps(void* address, std::size_t bytes) noexcept {
  return madvise(address, bytes, MADV_DONTDUMP) == 0;
}

void give_back_host_memory(void* address, std::size_t bytes, bool own_pages) noexcept {
  if (!own_pages && bytes < mapped_from_bytes) {
    ::operator delete(address, std::align_val_t{small_alignment});
  } else {
    munmap(address, bytes);
  }
}

void give_back_pages(void* address, std::size_t bytes) noexcept {
  auto const page = system_page_bytes();
  auto const begin = reinterpret_cast<std::uintptr_t>(address);
  auto const first = round_to(begin, page), last = (begin + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

namespace {

std::atomic<std::size_t> elsewhere{0};  // relaxed: a count alone

}  // namespace

void count_elsewhere(std::size_t bytes) noexcept {
  elsewhere.fetch_add(bytes, std::memory_order_relaxed);
}

void count_elsewhere_no_more(std::size_t bytes) noexcept {
  elsewhere.fetch_sub(bytes, std::memory_order_relaxed);
}

std::size_t bytes_elsewhere() noexcept {
  return elsewhere.load(std::memory_order_relaxed);
}

std::byte* map_addresses(std::size_t bytes, std::size_t alignment, std::size_t skew, int protection) noexcept {
  auto const page = system_page_bytes();
  if (bytes > SIZE_MAX / 4) return nullptr;  // far beyond any address space; keeps the sums below from wrapping
  auto const wanted = round_to(bytes, page);
  auto const slack = alignment > page || skew != 0 ? alignment + skew : 0;
  auto* const mapped = mmap(nullptr, wanted + slack, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return static_cast<std::byte*>(mapped);

  auto const begin = reinterpret_cast<std::uintptr_t>(mapped);
  auto const chosen = round_to(begin, alignment) + skew;
  auto const end = begin + wanted + slack;
  if (chosen != begin) munmap(mapped, chosen - begin);
  if (chosen + wanted != end) munmap(reinterpret_cast<void*>(chosen + wanted), end - (chosen + wanted));
  return reinterpret_cast<std::byte*>(chosen);
}

void repeat_pattern(void* to, std::size_t bytes, std::span<const std::byte> pattern) noexcept {
  auto* const target = static_cast<std::byte*>(to);
  if (pattern.size() == 1) {
    std::memset(target, std::to_integer<int>(pattern[0]), bytes);
    return;
  }
  // Doubling from what is already filled, up to a piece that stays in the first-level cache while it is copied on.
  constexpr std::size_t piece = 8192;
  auto filled = std::min(pattern.size(), bytes);
  std::memcpy(target, pattern.data(), filled);
  while (filled < bytes) {
    auto const count = std::min({filled, piece, bytes - filled});
    std::memcpy(target + filled, target, count);
    filled += count;
  }
}

}  // namespace unimem::detail
