#pragma once

#include <unimem/device/pages.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace unimem::detail {

/// The device that pages belong to: keeps their sum within its capacity, and what it knows of their contents up to
/// date.
class PageOwner {
 public:
  PageOwner() = default;
  PageOwner(PageOwner const&) = delete;
  PageOwner& operator=(PageOwner const&) = delete;

  /// Counts `bytes` against the capacity; throws OutOfMemory.
  virtual void take_for_pages(std::size_t bytes) = 0;
  virtual void give_back_from_pages(std::size_t bytes) noexcept = 0;

  /// Fresh memory lies at `base` now; memory moved, contents and all; memory is gone.
  virtual void pages_created(std::uintptr_t base, std::size_t bytes) = 0;
  virtual void pages_moved(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) = 0;
  virtual void pages_freed(std::uintptr_t base, std::size_t bytes) noexcept = 0;

 protected:
  ~PageOwner() = default;
};

/// Pages of host memory, moved between addresses by the kernel's page tables (`mremap`) and never copied.
///
/// Pages that are mapped nowhere must still be somewhere: they are parked at addresses of their own, which are their
/// handle. A place that pages have left must not be seen empty by another thread's `mmap`, so they are moved with
/// MREMAP_DONTUNMAP (Linux 5.7) and the place is covered again in one step. The kernel moves one mapping at a time, so
/// every piece that was ever moved on its own is remembered, and a range is moved piece by piece.
///
/// Each such move costs two changes of mappings, microseconds each, and leaves the kernel one more mapping to look
/// after, of which a process may have 65,530. Memory whose contents nobody needs is therefore shifted without touching
/// mappings: the kernel takes the old pages back (MADV_DONTNEED) and gives others at the first touch. The place that
/// they have left stays accessible, idle, until memory is shifted there again.
///
/// Thread-safe.
class HostPages final : public PageSource {
 public:
  explicit HostPages(PageOwner& owner) noexcept : owner_(owner) {}

  /// Whether this kernel can move pages without leaving a hole. Tried out once.
  [[nodiscard]] static bool supported() noexcept;

  [[nodiscard]] std::size_t page_bytes() const noexcept override { return std::size_t{64} << 10; }
  [[nodiscard]] AddressRange reserve(std::size_t bytes) override;
  void give_up(AddressRange range) noexcept override;
  [[nodiscard]] Pages create_pages(std::size_t bytes) override;
  void free_pages(Pages pages) noexcept override;
  void map(AddressRange range, Pages pages) override;
  [[nodiscard]] Pages unmap(AddressRange range) override;
  void populate(AddressRange range) override;
  void discard(AddressRange range) override;
  [[nodiscard]] bool shift(AddressRange from, AddressRange to) override;

  /// Whether all of `[base, base + bytes)` is memory mapped into a reservation.
  [[nodiscard]] bool is_mapped(std::uintptr_t base, std::size_t bytes) const;

 private:
  /// Address to size, of things that do not overlap.
  using Extents = std::map<std::uintptr_t, std::size_t>;

  /// Part of what the kernel keeps as one mapping, which has a number. Parts that touch and have one number are one.
  /// Memory that was populated has number 0: where the kernel's mappings end there is not remembered, or every shift
  /// would have to split and join dozens of pieces. Only its single pages can be moved, should that be asked for.
  struct Piece {
    std::size_t bytes;
    std::uint64_t mapping;
  };
  using Pieces = std::map<std::uintptr_t, Piece>;

  static constexpr std::size_t opened_ahead = std::size_t{64} << 20;

  void check_size(std::size_t bytes) const;
  void check_range(AddressRange range) const;
  /// The bytes of `[base, base + bytes)` that have memory behind them.
  [[nodiscard]] std::size_t present(std::uintptr_t base, std::size_t bytes) const;
  /// Throws InvalidArgument unless all of a range is mapped, or nothing is.
  void check_mapped(AddressRange range) const;
  void check_vacant(AddressRange range) const;
  /// Makes `[base, base + bytes)` begin and end with pieces.
  static void split(Pieces& pieces, std::uintptr_t base, std::size_t bytes);
  static void forget(Pieces& pieces, std::uintptr_t base, std::size_t bytes) noexcept;
  /// Takes the pieces of a range, which begins and ends with pieces, from one set to the other.
  static void transfer(Pieces& from, Pieces& to, std::uintptr_t base, std::size_t bytes) noexcept;
  /// Makes a piece of each page of populated memory.
  void single_out(std::uintptr_t base, std::size_t bytes);
  /// Makes all of a vacant range idle, and some of what follows. On failure some of it is. Throws OutOfMemory.
  void open(AddressRange range);
  void open_gap(std::uintptr_t at, std::uintptr_t until, Pieces::iterator next);
  /// Moves every piece of `[from, from + bytes)`; on failure all are back where they were. Throws OutOfMemory.
  void move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes);

  PageOwner& owner_;
  mutable std::mutex mutex_;
  Extents reservations_;
  Extents parked_;  ///< handles that are out
  Pieces pieces_;   ///< all memory, mapped and parked, as the kernel moves it
  Pieces idle_;     ///< accessible places within reservations that hold no memory
  std::uint64_t mappings_ = 0;
};

}  // namespace unimem::detail
