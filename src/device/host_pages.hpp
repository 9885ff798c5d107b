#pragma once

#include <unimem/device/detail/pages.hpp>

#include "core/fork.hpp"
#include "device/page_set.hpp"

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
/// after, of which a process may have 65,530. Memory whose contents are not needed is therefore shifted without
/// touching mappings: the kernel takes the old pages back (MADV_DONTNEED) and gives others at the first touch. The
/// place that they have left stays accessible, idle, until memory is shifted there again. What is accessible and what
/// holds memory is a bit for every page; mappings concern pages that were moved alone.
///
/// Thread-safe.
class HostPages final : public PageSource {
 public:
  explicit HostPages(PageOwner& owner) : owner_(owner) {}

  /// Whether this kernel can move pages without leaving a hole. Tried out once.
  [[nodiscard]] static bool supported() noexcept;

  [[nodiscard]] std::size_t page_bytes() const noexcept override { return std::size_t{64} << 10; }
  [[nodiscard]] AddressRange reserve(std::size_t bytes) override { return reserve(bytes, false); }
  [[nodiscard]] AddressRange reserve_undumped(std::size_t bytes) override { return reserve(bytes, true); }
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
  /// Addresses, and which of their pages are accessible, and which of these hold memory.
  struct Reservation {
    std::size_t bytes;
    bool undumped;  ///< what is accessible is left out of core dumps
    PageSet open, present;
  };

  /// Whole pages of one reservation, by their numbers there.
  struct Stretch {
    std::uintptr_t base;  ///< of the reservation
    Reservation& in;
    std::size_t first, count;
  };

  /// What the kernel keeps as one mapping because it was moved there, by its address. Stays what it is while memory is
  /// shifted away and back. Of all other accessible memory it is not remembered where the kernel's mappings end, or
  /// every shift would have to split and join dozens of pieces: only its single pages can be moved, should that be
  /// asked for.
  using Pieces = std::map<std::uintptr_t, std::size_t>;

  static constexpr std::size_t opened_ahead = std::size_t{64} << 20;

  [[nodiscard]] AddressRange reserve(std::size_t bytes, bool undumped);
  void check_size(std::size_t bytes) const;
  /// The one of all reservations that an address is in, or their end.
  template <class Reservations>
  [[nodiscard]] static auto reservation_of(Reservations& all, std::uintptr_t address);
  /// Throws InvalidArgument unless a range is whole pages of one reservation.
  [[nodiscard]] Stretch stretch(AddressRange range);
  /// Throws InvalidArgument unless all of a range is mapped, or nothing is.
  static void check_mapped(Stretch const& stretch, AddressRange range);
  static void check_vacant(Stretch const& stretch, AddressRange range);
  /// Makes `[base, base + bytes)` begin and end with pieces, where it has any.
  void split(std::uintptr_t base, std::size_t bytes);
  void forget(std::uintptr_t base, std::size_t bytes) noexcept;
  /// Makes a piece of each page that is part of none.
  void single_out(std::uintptr_t base, std::size_t bytes);
  /// Makes all of a stretch accessible, and some of what follows. On failure some of it is. Throws OutOfMemory.
  void open(Stretch const& stretch);
  /// Moves every piece of `[from, from + bytes)`; on failure all are back where they were. Throws OutOfMemory.
  void move(std::uintptr_t from, std::uintptr_t to, std::size_t bytes);

  MadeHere const made_{};
  PageOwner& owner_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Reservation> reservations_;
  std::map<std::uintptr_t, std::size_t> parked_;  ///< handles that are out, and their sizes
  Pieces pieces_;                                 ///< parked, or open in a reservation
};

}  // namespace unimem::detail
