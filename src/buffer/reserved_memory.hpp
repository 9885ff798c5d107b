#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/pool/allocation.hpp>

#include "manager/use_history.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace unimem::detail {

/// Host addresses for all of a buffer, with memory behind those parts of it that are in use: a buffer that is larger
/// than the host's limit is worked with part by part, where its bytes always lie. The parts are cells of one size.
///
/// A cell's memory is its own, which the system gives at the first touch and takes back (MADV_DONTNEED), while a block
/// of a pool of the same size, with no memory behind it, stands for it there: limits, statistics and admission know
/// nothing of cells.
///
/// The buffer's lock guards it, but for holds, which end without it.
class ReservedMemory {
 public:
  /// `skew`: how far the first byte is from a multiple of the page size, so that bytes of a file that lie in one page
  /// can lie in one page of memory. `cell_bytes`: whole pages. Throws OutOfMemory for want of addresses.
  /// `pools`: keeps whose blocks stand for cells.
  ReservedMemory(std::size_t bytes, std::size_t skew, std::size_t cell_bytes, std::shared_ptr<void const> pools);
  ReservedMemory(ReservedMemory const&) = delete;
  ReservedMemory& operator=(ReservedMemory const&) = delete;
  /// No work is pending there.
  ~ReservedMemory();

  /// Of the first byte of the buffer.
  [[nodiscard]] void* address() const noexcept { return base_ + skew_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t cell_bytes() const noexcept { return cell_bytes_; }
  [[nodiscard]] std::size_t committed_bytes() const noexcept { return committed_.size() * cell_bytes_; }

  /// Cells by number, [first, last), that have some of `range`.
  struct Cells {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  [[nodiscard]] Cells cells_of(ByteRange range) const noexcept;
  /// The bytes of the buffer that a cell is for.
  [[nodiscard]] ByteRange range_of(std::size_t cell) const noexcept;
  [[nodiscard]] bool is_committed(std::size_t cell) const noexcept { return !cells_[cell].block.empty(); }
  /// Those with memory, in no order.
  [[nodiscard]] std::span<const std::size_t> committed() const noexcept { return committed_; }

  /// Puts memory behind a cell that has none, for which `block` stands. Throws std::bad_alloc.
  void commit(std::size_t cell, Allocation block);
  /// All of these are about to be written to: the system may give huge pages, which take a third of the time to find
  /// and clear. Where less is touched, they would take more memory than that.
  void will_fill(Cells some) noexcept;
  /// Takes it away again, contents and all. No work is pending there, and nothing holds it.
  void decommit(std::size_t cell) noexcept;

  /// The cells that have some of `range` stay where they are until that many `release`s. Thread-safe.
  void hold(ByteRange range) noexcept;
  void release(ByteRange range) noexcept;
  [[nodiscard]] bool is_held(std::size_t cell) const noexcept {
    return cells_[cell].holds.load(std::memory_order_acquire) != 0;
  }

  [[nodiscard]] UseHistory& history(std::size_t cell) noexcept { return cells_[cell].history; }
  [[nodiscard]] UseHistory const& history(std::size_t cell) const noexcept { return cells_[cell].history; }

 private:
  struct Cell {
    Allocation block;
    UseHistory history{};
    std::atomic<unsigned> holds{0};
  };

  [[nodiscard]] std::byte* address_of(std::size_t cell) const noexcept { return base_ + cell * cell_bytes_; }

  std::shared_ptr<void const> pools_;  ///< goes last
  std::size_t bytes_, skew_, cell_bytes_;
  std::size_t reserved_;  ///< bytes of addresses
  std::vector<Cell> cells_;
  std::vector<std::size_t> committed_;
  std::byte* base_;
};

}  // namespace unimem::detail
