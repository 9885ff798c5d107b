#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>

namespace unimem {

/// Reserved addresses, perhaps with nothing behind them. A plain value; `PageSource::give_up` ends the reservation.
struct AddressRange {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;

  /// The part `[from, from + count)`; both multiples of the page size, the caller has checked that it fits.
  [[nodiscard]] constexpr AddressRange part(std::size_t from, std::size_t count) const noexcept {
    return {base + from, count};
  }
  friend constexpr bool operator==(AddressRange, AddressRange) = default;
};

/// Physical memory that is mapped nowhere at the moment. Must go back through `map` or `free_pages`; dropping it leaks.
struct Pages {
  std::uintptr_t handle = 0;
  std::size_t bytes = 0;
};

/// Addresses and the memory behind them, handled apart: what lets a pool grow a range in place and move memory between
/// ranges without copying. All sizes and offsets are multiples of `page_bytes()`, or InvalidArgument. Thread-safe.
class UNIMEM_API PageSource {
 public:
  PageSource() = default;
  PageSource(PageSource const&) = delete;
  PageSource& operator=(PageSource const&) = delete;
  virtual ~PageSource();

  /// The smallest piece that can be mapped: a power of two.
  [[nodiscard]] virtual std::size_t page_bytes() const noexcept = 0;

  /// What fresh memory of `bytes` is made of: pieces of so many bytes, from its begin on, as many as are whole, and
  /// single pages behind them. A piece is taken away only as a whole, in one call with others or alone. `page_bytes()`,
  /// where every page can go by itself, or a power of two above it.
  [[nodiscard]] virtual std::size_t piece_bytes(std::size_t bytes) const noexcept;

  /// Addresses with nothing behind them; costs no memory. Throws OutOfMemory when the address space refuses.
  [[nodiscard]] virtual AddressRange reserve(std::size_t bytes) = 0;

  /// As `reserve`: where the memory behind it is this process's, it is left out of core dumps (MADV_DONTDUMP).
  [[nodiscard]] virtual AddressRange reserve_undumped(std::size_t bytes);

  /// Ends a whole reservation. Nothing may be mapped in it.
  virtual void give_up(AddressRange range) noexcept = 0;

  /// Fresh memory, counted against the device's capacity. Throws OutOfMemory.
  [[nodiscard]] virtual Pages create_pages(std::size_t bytes) = 0;

  /// Gives memory back to the device.
  virtual void free_pages(Pages pages) noexcept = 0;

  /// Puts `pages` behind `range` (of the same size, nothing mapped there): contents travel along.
  virtual void map(AddressRange range, Pages pages) = 0;

  /// Takes the memory behind `range`, which must be exactly mapped and cut no piece, away again: contents travel along.
  [[nodiscard]] virtual Pages unmap(AddressRange range) = 0;

  /// `map(range, create_pages(range.bytes))` in one step. If it throws nothing has changed.
  virtual void populate(AddressRange range);

  /// `free_pages(unmap(range))` in one step. If it throws nothing has changed.
  virtual void discard(AddressRange range);

  /// Takes the memory behind `from`, whose contents are not needed, to behind `to`: what it holds there is
  /// undefined. False, and nothing has changed, if this source does no better than `map(to, unmap(from))`; nothing has
  /// changed if it throws either. What `from` reads until something is mapped there again is undefined; it need not
  /// fault.
  [[nodiscard]] virtual bool shift(AddressRange from, AddressRange to);
};

}  // namespace unimem
