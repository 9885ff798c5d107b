#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace unimem::detail {

/// Remembers which memory of a simulated device has never been touched, and makes it read 0xCD just before it is
/// read.
///
/// A real device hands out the old bytes of other owners; 0xCD makes code that relies on them fail in the same way
/// every time. Writing it at allocation would cost real memory for every simulated byte, so it is written lazily, in
/// granules of 64 KiB: small enough to be cheap for a small access, large enough that the set stays short. The set is
/// one of address ranges, not a bitmap per allocation: an untouched terabyte is one entry, and pages that move take
/// their part of it along.
///
/// Thread-safe. Poison is written under the lock, so that it never lands on bytes that another queue has just written
/// beside it.
class FreshMemory {
 public:
  static constexpr std::byte poison{0xCD};
  static constexpr std::size_t granule_bytes = std::size_t{64} << 10;

  /// Memory that was just allocated: readable and writable at these addresses.
  void add(std::uintptr_t base, std::size_t bytes);

  /// Memory that is about to go. Where that takes memory which the host has not, neighbours that were never touched
  /// either are written to, and need not be remembered.
  void remove(std::uintptr_t base, std::size_t bytes) noexcept;

  /// Memory that is at another address now. Both are multiples of the granule, or the granules' neighbours would be
  /// disturbed.
  void move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes);

  /// To be called before `[base, base + bytes)` is read or partly written.
  void before_access(std::uintptr_t base, std::size_t bytes);

  /// To be called before all of `[base, base + bytes)` is written: whole granules need no poison.
  void before_overwrite(std::uintptr_t base, std::size_t bytes);

 private:
  [[nodiscard]] ByteRanges fresh_part(ByteRange range) const;
  static void fill(ByteRange range) noexcept;
  void write_poison(ByteRange range);

  std::mutex mutex_;
  ByteRanges fresh_;  ///< of addresses
};

}  // namespace unimem::detail
