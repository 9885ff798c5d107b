// What a program is told, and refused, by a system whose pages are of 64 KiB, on one with smaller pages: linked into a
// program beside --wrap for each of these calls (unimem_large_pages). What such a system refuses fails the test as
// well: the library would go on, and leak. The system itself still counts and moves in its own pages.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names
long __real_sysconf(int name);
void* __real_mmap(void* address, std::size_t bytes, int protection, int flags, int descriptor, off_t offset);
int __real_munmap(void* address, std::size_t bytes);
int __real_mprotect(void* address, std::size_t bytes, int protection);
int __real_madvise(void* address, std::size_t bytes, int advice);
void* __real_mremap(void* address, std::size_t old_bytes, std::size_t new_bytes, int flags, ...);
}

namespace {

constexpr std::size_t page_here = std::size_t{64} << 10;

std::size_t whole(std::size_t bytes) {
  return (bytes + page_here - 1) / page_here * page_here;
}

bool refused(char const* call, std::uintptr_t address) {
  if (address % page_here == 0) return false;
  ADD_FAILURE() << call << " of " << std::hex << address << " is refused where pages are of 64 KiB";
  errno = EINVAL;
  return true;
}

bool refused(char const* call, void const* address) {
  return refused(call, reinterpret_cast<std::uintptr_t>(address));
}

/// Addresses that begin at a page of such a system.
void* some_addresses(std::size_t bytes) {
  auto* const all =
      __real_mmap(nullptr, bytes + page_here, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return all;
  auto* const first = static_cast<std::byte*>(all);
  auto const before = (page_here - reinterpret_cast<std::uintptr_t>(all) % page_here) % page_here;
  if (before != 0) __real_munmap(first, before);
  __real_munmap(first + before + bytes, page_here - before);
  return first + before;
}

/// The last page of a file's is zeros behind the file's end: all of it.
bool map_zeros(std::byte* address, std::size_t bytes, int protection, int descriptor, off_t offset) {
  struct ::stat status{};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= offset) return true;
  auto const small = static_cast<std::size_t>(__real_sysconf(_SC_PAGESIZE));
  auto const of_file = static_cast<std::size_t>(status.st_size - offset);
  auto const first = (of_file + small - 1) / small * small, end = std::min(whole(of_file), bytes);
  if (first >= end) return true;
  return __real_mmap(address + first, end - first, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

}  // namespace

extern "C" {

long __wrap_sysconf(int name) {
  auto const answer = __real_sysconf(name);
  if (name == _SC_PAGESIZE) return static_cast<long>(page_here);
  if (name == _SC_PHYS_PAGES) return answer * __real_sysconf(_SC_PAGESIZE) / static_cast<long>(page_here);
  return answer;
}

void* __wrap_mmap(void* address, std::size_t bytes, int protection, int flags, int descriptor, off_t offset) {
  if (refused("the offset of a mapping", static_cast<std::uintptr_t>(offset))) return MAP_FAILED;
  if ((flags & MAP_FIXED) != 0) {
    if (refused("a mapping", address)) return MAP_FAILED;
  } else {
    address = some_addresses(whole(bytes));
    if (address == MAP_FAILED) return MAP_FAILED;
    flags |= MAP_FIXED;
  }
  auto* const mapped = __real_mmap(address, whole(bytes), protection, flags, descriptor, offset);
  if (mapped == MAP_FAILED || (flags & MAP_ANONYMOUS) != 0) return mapped;
  auto* const first = static_cast<std::byte*>(mapped);
  return map_zeros(first, whole(bytes), protection, descriptor, offset) ? mapped : MAP_FAILED;
}

int __wrap_munmap(void* address, std::size_t bytes) {
  return refused("munmap", address) ? -1 : __real_munmap(address, whole(bytes));
}

int __wrap_mprotect(void* address, std::size_t bytes, int protection) {
  return refused("mprotect", address) ? -1 : __real_mprotect(address, whole(bytes), protection);
}

int __wrap_madvise(void* address, std::size_t bytes, int advice) {
  return refused("madvise", address) ? -1 : __real_madvise(address, whole(bytes), advice);
}

void* __wrap_mremap(void* address, std::size_t old_bytes, std::size_t new_bytes, int flags, ...) {
  void* target = nullptr;
  if ((flags & MREMAP_FIXED) != 0) {
    std::va_list rest;
    va_start(rest, flags);
    target = va_arg(rest, void*);
    va_end(rest);
  }
  if (refused("mremap", address) || refused("mremap", target)) return MAP_FAILED;
  return __real_mremap(address, whole(old_bytes), whole(new_bytes), flags, target);
}
// NOLINTEND(bugprone-reserved-identifier)
}
