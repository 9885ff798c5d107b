#pragma once

#include <unimem/buffer/options.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/pool/allocation.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "buffer/reserved_memory.hpp"
#include "file/file_mapping.hpp"
#include "manager/file_memory.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {

/// Where the bytes of a replica are: in a block of a pool, in memory that was wrapped, in host memory that comes in
/// parts or is a file's own pages, or in a file, which is the file device's memory.
///
/// Not thread-safe; the buffer's lock guards it.
class ReplicaMemory {
 public:
  /// Of a device, which has it in its own terms, for the buffer's bytes from `begin` on.
  ReplicaMemory(Device& device, Allocation allocation, std::size_t begin = 0);
  /// For the host, of host memory, of which only `part` is used.
  ReplicaMemory(Device& host_device, Allocation allocation, DeviceMemory part);
  /// Host memory that exists already, pageable or pinned: its owner's until `own`.
  ReplicaMemory(Device& host_device, void* pointer, std::size_t bytes, Location location);
  explicit ReplicaMemory(std::shared_ptr<FileMemory> file);
  /// Host memory that comes and goes in parts.
  ReplicaMemory(Device& host_device, std::shared_ptr<ReservedMemory> reserved);
  /// Pages of a file's in the host's memory, which nobody writes.
  ReplicaMemory(Device& host_device, std::shared_ptr<FileMapping const> mapped);
  ReplicaMemory(ReplicaMemory&&) = default;
  ReplicaMemory& operator=(ReplicaMemory&&) = delete;
  ~ReplicaMemory() = default;

  /// Unified memory of the device serves the host, too.
  void serve_host();
  /// How memory that exists already is let go of in the end.
  void own(Ownership ownership) noexcept { ownership_ = std::move(ownership); }

  [[nodiscard]] Device& device() const noexcept { return *device_; }
  [[nodiscard]] Location location() const noexcept { return allocation_ ? allocation_.location() : wrapped_at_; }
  [[nodiscard]] DeviceMemory memory() const noexcept { return memory_; }
  /// The bytes of the buffer that it has room for: all of them, but for a window.
  [[nodiscard]] ByteRange whole() const noexcept { return {begin_, begin_ + memory_.bytes}; }
  /// The part of it that holds `range` of the buffer.
  [[nodiscard]] DeviceMemory window(ByteRange range) const noexcept {
    return memory_.window(range.begin - begin_, range.size());
  }
  /// Pieces of the buffer, with that offset of theirs in this memory in place of the buffer.
  [[nodiscard]] std::vector<CopyPiece> in_memory(std::vector<CopyPiece> pieces, std::size_t CopyPiece::* offset) const {
    if (begin_ == 0) return pieces;
    for (auto& piece : pieces) piece.*offset -= begin_;
    return pieces;
  }
  /// Whether it is the host's, by addresses, whatever else it is.
  [[nodiscard]] bool serves_host() const noexcept { return !by_address_.empty(); }
  /// The part of it that holds `range`, for work of the host: `object` is an address.
  [[nodiscard]] DeviceMemory host_window(ByteRange range) const noexcept {
    return by_address_.window(range.begin, range.size());
  }
  [[nodiscard]] void* host_address() const noexcept {
    return reinterpret_cast<void*>(by_address_.object + by_address_.offset);
  }
  /// For work of `device`: as it is known there, if it is the device's own, or else by address.
  [[nodiscard]] DeviceMemory window_on(Device const& device, ByteRange range) const noexcept {
    return &device == device_ ? window(range) : host_window(range);
  }
  /// The address of what one of these windows stands for; null where there is none.
  [[nodiscard]] void* address_of(DeviceMemory window) const;

  [[nodiscard]] std::size_t capacity() const noexcept {
    if (reserved_) return reserved_->committed_bytes();
    return allocation_ ? allocation_.capacity() : memory_.bytes;
  }
  /// Null where the memory comes and goes as a whole.
  [[nodiscard]] ReservedMemory* reserved() const noexcept { return reserved_; }
  /// Null where it is not a file's own pages.
  [[nodiscard]] FileMapping const* mapped() const noexcept { return mapped_; }
  /// Whether it came from a pool: what the library did not allocate it does not move either.
  [[nodiscard]] bool pooled() const noexcept { return !allocation_.empty(); }
  [[nodiscard]] bool in_file() const noexcept { return file_ != nullptr; }
  /// Whether it is host memory that the system may move while the driver looks.
  [[nodiscard]] bool pageable() const noexcept { return location() == Location::host && !locked_; }
  /// A better place for all of it in the pool it is from; empty if there is none, or it is from no pool.
  [[nodiscard]] Allocation better_place(MemoryPool& pool) const { return pool.acquire_better(allocation_); }

  /// Whether it is ordinary host memory of a pool that shares no page with anything else.
  [[nodiscard]] bool can_be_locked() const noexcept;
  /// Locks such memory where it stands, until it goes back to its pool, which then waits for the work on it. Why it was
  /// refused, or empty.
  [[nodiscard]] std::string lock_in_place();

  /// Whether it may be evicted to a file: it is a pool's, the host's, and was not asked to stay.
  [[nodiscard]] bool may_be_spilled() const noexcept { return allocation_ && serves_host() && !locked_; }
  /// Copies the bytes of a file from `offset` on to memory of `target`'s size. Throws IoError.
  void read_file(std::span<std::byte> target, std::size_t offset) const { file_->get_directly(offset, target); }

  /// Gives it back when its last work has ended, which `last` says: without waiting, where it goes back to a pool that
  /// waits, else here, or on a thread of the library's in the middle of work, which may be that work. Nothing is left.
  void let_go(Event last) noexcept;

 private:
  /// What is left to do when the last work with memory has ended that was wrapped or locked in place.
  struct Remains;
  static void let_go_later(Remains remains, Event last) noexcept;

  Device* device_;
  Allocation allocation_;
  Ownership ownership_;
  FileMemory* file_ = nullptr;             ///< null: in memory
  ReservedMemory* reserved_ = nullptr;     ///< null: it comes whole
  FileMapping const* mapped_ = nullptr;    ///< null: the memory is the buffer's own
  std::shared_ptr<void const> of_system_;  ///< what owns the one of them that there is
  Location wrapped_at_ = Location::host;   ///< where memory is that came from no pool
  std::size_t begin_ = 0;                  ///< of a window; the host reaches no windows
  bool locked_ = false;                    ///< in place
  DeviceMemory memory_;
  DeviceMemory by_address_;  ///< the same for the host; empty if the host does not reach it
};

}  // namespace unimem::detail
