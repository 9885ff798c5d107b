#include "device/cuda_standin/address_space.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

namespace unimem::standin {
namespace {

struct Zone {
  Address begin;
  Address end;
  Address next;  ///< the first address that was never handed out
};

// Small enough for ThreadSanitizer, which leaves a program little of the address space.
constexpr std::size_t zone_bytes = std::size_t{16} << 30;
constexpr std::size_t large_bytes = std::size_t{1} << 30;  ///< from here on a range is a zone of its own

// Called with the machine's lock and, from the ends of objects, without.
std::mutex& zones_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

std::vector<Zone>& zones() {
  static auto& all = *new std::vector<Zone>;
  return all;
}

Address aligned(Address address, std::size_t alignment) {
  return (address + alignment - 1) & ~(Address{alignment} - 1);
}

void* pointer(Address at) {
  return reinterpret_cast<void*>(at);
}

}  // namespace

std::size_t whole_pages(std::size_t bytes) {
  static auto const page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

Address take_addresses(std::size_t bytes, std::size_t alignment) {
  std::lock_guard const lock{zones_mutex()};
  auto const wanted = whole_pages(bytes) + whole_pages(1);  // never two objects wall to wall
  for (auto& zone : zones()) {
    auto const at = aligned(zone.next, alignment);
    if (wanted >= large_bytes || at > zone.end || zone.end - at < wanted) continue;
    zone.next = at + wanted;
    return at;
  }
  auto const room = wanted >= large_bytes ? wanted + alignment : zone_bytes + alignment;
  auto* const fresh = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh == MAP_FAILED) return 0;
  auto const begin = reinterpret_cast<Address>(fresh);
  auto const at = aligned(begin, alignment);
  auto const end = begin + room;
  zones().push_back({begin, end, wanted >= large_bytes ? end : at + wanted});
  return at;
}

void drop_addresses(Address at, std::size_t bytes) {
  std::lock_guard const lock{zones_mutex()};
  auto const around = [&](Zone const& zone) { return zone.begin <= at && at < zone.end; };
  auto const zone = std::ranges::find_if(zones(), around);
  if (whole_pages(bytes) + whole_pages(1) < large_bytes) return withdraw_memory(at, bytes);
  munmap(pointer(zone->begin), zone->end - zone->begin);
  zones().erase(zone);
}

bool is_device_address(Address address) {
  std::lock_guard const lock{zones_mutex()};
  return std::ranges::any_of(zones(), [&](Zone const& zone) { return zone.begin <= address && address < zone.end; });
}

bool back_with_memory(Address at, std::size_t bytes) {
  auto* const made = mmap(pointer(at), whole_pages(bytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  poison(made, whole_pages(bytes));
  return true;
}

bool back_with_same_memory(Address one, Address other, std::size_t bytes) {
  auto const length = whole_pages(bytes);
  auto const file = memfd_create("unimem-standin: pinned", MFD_CLOEXEC);
  if (file < 0) return false;
  auto const backed = ftruncate(file, static_cast<off_t>(length)) == 0 && back_with_file(one, length, file) &&
                      back_with_file(other, length, file);
  close(file);
  if (!backed) return false;
  for (auto const at : {one, other}) allow_access(at, length, true);
  poison(pointer(one), length);
  return true;
}

bool back_with_file(Address at, std::size_t bytes, int file) {
  return mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
}

void allow_access(Address at, std::size_t bytes, bool allowed) {
  mprotect(pointer(at), bytes, allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void withdraw_memory(Address at, std::size_t bytes) {
  mmap(pointer(at), whole_pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

void poison(void* at, std::size_t bytes) {
  std::memset(at, fresh_byte, bytes);
}

bool is_mapped(Address begin, std::size_t bytes) {
  constexpr std::size_t at_once = 4096;
  auto const page = whole_pages(1);
  unsigned char resident[at_once];
  for (auto at = begin / page * page; at < begin + bytes; at += at_once * page) {
    auto const length = std::min(begin + bytes - at, at_once * page);
    if (mincore(pointer(at), length, resident) != 0) return false;
  }
  return true;
}

}  // namespace unimem::standin
