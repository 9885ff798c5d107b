#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/streams.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

// Addresses and the memory behind them, apart. None of it needs a current context, and mapped memory belongs to none.

namespace unimem::standin {
namespace {

// Beyond this, fresh memory reads zero: a file cannot repeat a page, and nobody has the memory of a real device.
constexpr std::size_t poisoned_at_most = std::size_t{64} << 20;

/// The file's name says whose memory it is, for the process that imports it.
constexpr char const* name_format = "unimem-standin:%d:%zu";

bool is_whole(std::size_t bytes) {
  return bytes > 0 && bytes % mapping_granularity == 0;
}

/// A device whose context is broken serves nothing any more.
void require_well(int device) {
  auto const& context = machine().device(device).primary;
  if (context != nullptr) require(context->error == Result::success, context->error);
}

void require_valid(AllocationProperties const* properties) {
  require(properties != nullptr && properties->type == AllocationType::pinned);
  require(properties->location.type == LocationType::device);
  require(properties->handle_types == HandleType::none || properties->handle_types == HandleType::posix_file_descriptor,
          Result::not_supported);
  auto const& device = machine().device(properties->location.id);
  require(attribute_of(device, DeviceAttribute::virtual_memory_management) != 0, Result::not_supported);
}

bool fill_fresh(int file, std::size_t bytes) {
  auto const length = std::min(bytes, poisoned_at_most);
  auto* const window = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (window == MAP_FAILED) return false;
  poison(window, length);
  munmap(window, length);
  return true;
}

/// The reservation that holds the whole range, as an iterator of the machine's.
bool inside_a_reservation(Address at, std::size_t bytes) {
  auto const& all = machine().reservations;
  auto const after = all.upper_bound(at);
  if (after == all.begin()) return false;
  auto const [base, size] = *std::prev(after);
  return at + bytes >= at && at + bytes <= base + size;
}

/// The mappings that make up the range exactly, in order; refuses a range that cuts one or has a gap.
std::vector<std::shared_ptr<Allocation>> mappings_of(Address at, std::size_t bytes) {
  require(bytes > 0 && at + bytes > at);
  std::vector<std::shared_ptr<Allocation>> all;
  for (auto next = at; next < at + bytes;) {
    auto mapping = machine().memory.beginning_at(next);
    require(mapping != nullptr && mapping->kind == MemoryKind::mapped && mapping->end() <= at + bytes);
    next = mapping->end();
    all.push_back(std::move(mapping));
  }
  return all;
}

AllocationHandle add_handle(std::shared_ptr<Physical> physical) {
  auto const handle = AllocationHandle{fresh_handle()};
  machine().physical.emplace(handle, std::move(physical));
  return handle;
}

std::shared_ptr<Physical> physical_of(AllocationHandle handle) {
  auto const found = machine().physical.find(handle);
  require(found != machine().physical.end());
  return found->second;
}

/// What a file descriptor means as memory of a device, read from the name that its maker gave it.
struct Meaning {
  int physical_device = -1;
  std::size_t bytes = 0;
};

Meaning meaning_of(int file) {
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  char name[128] = {};
  auto const length = readlink(link, name, sizeof name - 1);
  Meaning meaning;
  auto const* const begin = length > 0 ? std::strstr(name, "unimem-standin:") : nullptr;
  require(begin != nullptr && std::sscanf(begin, name_format, &meaning.physical_device, &meaning.bytes) == 2);
  return meaning;
}

/// The memory of the same file that this process knows already, or null.
std::shared_ptr<Physical> known(int file) {
  struct stat wanted{};
  require(fstat(file, &wanted) == 0);
  auto const same = [&](std::shared_ptr<Physical> const& physical) {
    struct stat other{};
    return physical != nullptr && fstat(physical->file, &other) == 0 && other.st_ino == wanted.st_ino &&
           other.st_dev == wanted.st_dev;
  };
  for (auto const& [handle, physical] : machine().physical)
    if (same(physical)) return physical;
  for (auto const& [base, allocation] : machine().memory)
    if (same(allocation->physical)) return allocation->physical;
  return nullptr;
}

}  // namespace

namespace calls {

Result cuMemAddressReserve(Lock& /*lock*/, DevicePointer* base, std::size_t bytes, std::size_t alignment,
                           DevicePointer /*wish*/, unsigned long long flags) {
  require(base != nullptr && is_whole(bytes) && flags == 0);
  require(alignment == 0 || (alignment & (alignment - 1)) == 0);
  auto const at = take_addresses(bytes, std::max(alignment, mapping_granularity));
  require(at != 0, Result::out_of_memory);
  machine().reservations.emplace(at, bytes);
  *base = at;
  return Result::success;
}

Result cuMemAddressFree(Lock& /*lock*/, DevicePointer base, std::size_t bytes) {
  auto& all = machine();
  auto const found = all.reservations.find(base);
  require(found != all.reservations.end() && found->second == bytes);
  require(!all.memory.intersects(base, bytes));
  all.reservations.erase(found);
  drop_addresses(base, bytes);
  return Result::success;
}

Result cuMemGetAllocationGranularity(Lock& /*lock*/, std::size_t* bytes, AllocationProperties const* properties,
                                     Granularity which) {
  require(bytes != nullptr && (which == Granularity::minimum || which == Granularity::recommended));
  require_valid(properties);
  *bytes = mapping_granularity;
  return Result::success;
}

Result cuMemCreate(Lock& /*lock*/, AllocationHandle* handle, std::size_t bytes, AllocationProperties const* properties,
                   unsigned long long flags) {
  require(handle != nullptr && is_whole(bytes) && flags == 0);
  require_valid(properties);
  auto const ordinal = properties->location.id;
  require_well(ordinal);
  auto& device = machine().device(ordinal);
  require(bytes <= device.room(), Result::out_of_memory);
  char name[64];
  std::snprintf(name, sizeof name, name_format, device.physical, bytes);
  auto const file = memfd_create(name, MFD_CLOEXEC);
  require(file >= 0, Result::out_of_memory);
  device.used += bytes;
  auto physical = std::make_shared<Physical>(ordinal, bytes, file);
  require(ftruncate(file, static_cast<off_t>(bytes)) == 0 && fill_fresh(file, bytes), Result::out_of_memory);
  physical->exportable_as = properties->handle_types;
  *handle = add_handle(std::move(physical));
  return Result::success;
}

Result cuMemRelease(Lock& /*lock*/, AllocationHandle handle) {
  static_cast<void>(physical_of(handle));
  machine().physical.erase(handle);
  return Result::success;
}

Result cuMemMap(Lock& /*lock*/, DevicePointer at, std::size_t bytes, std::size_t offset, AllocationHandle handle,
                unsigned long long flags) {
  auto const physical = physical_of(handle);
  require_well(physical->device);
  require(is_whole(bytes) && at % mapping_granularity == 0 && offset == 0 && flags == 0);
  require(bytes <= physical->bytes && inside_a_reservation(at, bytes));
  require(!machine().memory.intersects(at, bytes));
  require(back_with_file(at, bytes, physical->file), Result::out_of_memory);
  auto mapping = std::make_shared<Allocation>(MemoryKind::mapped, at, bytes);
  mapping->device = physical->device;
  mapping->physical = physical;
  machine().memory.add(std::move(mapping));
  return Result::success;
}

Result cuMemUnmap(Lock& lock, DevicePointer at, std::size_t bytes) {
  auto mappings = mappings_of(at, bytes);
  for (auto& mapping : mappings) {
    auto const& context = machine().device(mapping->device).primary;
    auto const well = context == nullptr || context->breaking == Result::success;
    forget_allocation(mapping, well ? "cuMemUnmap" : nullptr);
    if (mapping.use_count() == 1)
      withdraw_memory(mapping->base, mapping->bytes);  // else a command is in the middle of it
  }
  // cuda.h, cuMemUnmap (note_sync): it "exhibits synchronous behavior for most use cases". An H100 does not wait.
  for (auto const& mapping : mappings) {
    if (auto const context = machine().device(mapping->device).primary) wait_implicitly(lock, *context);
  }
  return Result::success;
}

Result cuMemSetAccess(Lock& /*lock*/, DevicePointer at, std::size_t bytes, AccessDescription const* access,
                      std::size_t count) {
  require(access != nullptr && count > 0);
  auto const mappings = mappings_of(at, bytes);
  for (auto const& each : std::vector(access, access + count)) {
    require(each.location.type == LocationType::device);
    auto const& device = machine().device(each.location.id);
    require(each.flags == AccessFlags::none || each.flags == AccessFlags::read ||
            each.flags == AccessFlags::read_write);
    require_well(each.location.id);  // "any further CUDA work" on a GPU whose context has failed returns that error
    for (auto const& mapping : mappings) {
      require_well(mapping->device);
      require(!device.unreachable.contains(mapping->device), Result::invalid_device);
    }
  }
  for (auto const& mapping : mappings) {
    for (auto const& each : std::vector(access, access + count)) mapping->access[each.location.id] = each.flags;
    auto const touched =
        std::ranges::any_of(mapping->access, [](auto const& one) { return one.second != AccessFlags::none; });
    allow_access(mapping->base, mapping->bytes, touched);
  }
  return Result::success;
}

Result cuMemExportToShareableHandle(Lock& /*lock*/, void* shareable, AllocationHandle handle, HandleType type,
                                    unsigned long long flags) {
  auto const physical = physical_of(handle);
  require(shareable != nullptr && flags == 0 && type == HandleType::posix_file_descriptor);
  require(physical->exportable_as == type);
  auto const file = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
  require(file >= 0, Result::unknown);
  std::memcpy(shareable, &file, sizeof file);
  return Result::success;
}

Result cuMemImportFromShareableHandle(Lock& /*lock*/, AllocationHandle* handle, void* shareable, HandleType type) {
  require(handle != nullptr && type == HandleType::posix_file_descriptor);
  auto const file = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  auto const meaning = meaning_of(file);
  if (auto physical = known(file)) {
    *handle = add_handle(std::move(physical));
    return Result::success;
  }
  auto& devices = machine().devices;
  auto const owner = std::ranges::find(devices, meaning.physical_device, &DeviceState::physical);
  require(owner != devices.end(), Result::invalid_device);
  auto const own = fcntl(file, F_DUPFD_CLOEXEC, 0);
  require(own >= 0, Result::unknown);
  owner->used += meaning.bytes;
  auto physical = std::make_shared<Physical>(static_cast<int>(owner - devices.begin()), meaning.bytes, own);
  physical->exportable_as = type;
  *handle = add_handle(std::move(physical));
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
