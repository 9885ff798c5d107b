#pragma once

#include "device/cuda_standin/address_space.hpp"
#include "device/cuda_standin/calls.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace unimem::standin {

struct ContextState;

/// One command of one stream.
struct Stamp {
  std::uint64_t stream = 0;
  std::uint64_t ticket = 0;
};

enum class MemoryKind : unsigned char {
  device,
  stream_ordered,
  mapped,
  managed,
  pinned,
  registered,
  device_view,  ///< of write-combined pinned memory, at the address that kernels reach it by
};

/// The memory behind a handle of cuMemCreate: a file in memory, so that another process can have it too.
struct Physical {
  Physical(int owner, std::size_t size, int descriptor) : device(owner), bytes(size), file(descriptor) {}
  Physical(Physical const&) = delete;
  Physical& operator=(Physical const&) = delete;
  ~Physical();  ///< the capacity comes back when the last handle and the last mapping are gone; under the machine's
                ///< lock

  int device;
  std::size_t bytes;
  int file;
  HandleType exportable_as = HandleType::none;
};

/// One range of memory that the driver knows. Whoever executes work on it keeps it alive, so that a free in the middle
/// of that work is a violation with a name and not a crash.
struct Allocation {
  Allocation(MemoryKind which, Address at, std::size_t size) : kind(which), base(at), bytes(size) {}
  Allocation(Allocation const&) = delete;
  Allocation& operator=(Allocation const&) = delete;
  ~Allocation();

  [[nodiscard]] Address end() const { return base + bytes; }
  [[nodiscard]] bool is_host() const {
    return kind == MemoryKind::pinned || kind == MemoryKind::registered || kind == MemoryKind::device_view;
  }

  MemoryKind kind;
  Address base;
  std::size_t bytes;
  int device = -1;                      ///< whose memory it is, or in whose context it was pinned
  std::weak_ptr<ContextState> context;  ///< whose end frees it; mapped memory belongs to none
  unsigned flags = 0;                   ///< as cuMemHostAlloc, cuMemHostRegister and cuMemAllocManaged got them
  bool alive = true;                    ///< stream-ordered memory lives from its command on
  Stamp born;                           ///< the command that makes stream-ordered memory
  bool free_is_queued = false;          ///< by cuMemFreeAsync
  std::shared_ptr<Physical> physical;   ///< of mapped memory
  std::map<int, AccessFlags> access;    ///< of mapped memory, by device
  std::shared_ptr<Allocation> view;     ///< of write-combined memory: where kernels reach it
};

/// A range of bytes that a command touches, from the point of view of a device.
struct Use {
  Address begin = 0;
  std::size_t bytes = 0;  ///< 0: a pointer a kernel got; whatever is there may be touched
  int device = -1;        ///< -1: the host side of a copy
  bool write = false;
};

/// What pageable, pinned and wrong host memory is for a copy.
enum class HostSide : unsigned char { pageable, pinned };

/// The allocations by their first address. Under the machine's lock.
class MemoryMap {
 public:
  void add(std::shared_ptr<Allocation> allocation);
  void remove(Address base) { by_base_.erase(base); }

  /// The allocation that begins at `base`, or null.
  [[nodiscard]] std::shared_ptr<Allocation> beginning_at(Address base) const;
  /// The allocation that `address` lies in, or null.
  [[nodiscard]] std::shared_ptr<Allocation> around(Address address) const;
  /// Whether any byte of the range belongs to an allocation.
  [[nodiscard]] bool intersects(Address begin, std::size_t bytes) const;

  /// What a use keeps alive, in order; empty if any byte of it is not to be touched by that device.
  [[nodiscard]] std::vector<std::shared_ptr<Allocation>> reach(Use const& use) const;

  /// The side of a copy that is host memory; refuses what is device memory, and a range half in pinned memory.
  [[nodiscard]] HostSide host_side(Address begin, std::size_t bytes) const;

  [[nodiscard]] auto begin() const { return by_base_.begin(); }
  [[nodiscard]] auto end() const { return by_base_.end(); }

 private:
  std::map<Address, std::shared_ptr<Allocation>> by_base_;
};

/// The driver knows the memory no more. Unless `call` is null, a use of it that is not over, as far as the host can
/// know, is a violation that names the call, and so is a write past its end.
void forget_allocation(std::shared_ptr<Allocation> const& allocation, char const* call);

/// Notes what was written past the end of memory that is nobody's any more.
void check_tail(Allocation const& allocation, char const* call);

}  // namespace unimem::standin
