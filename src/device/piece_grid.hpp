#pragma once

#include <unimem/device/memory.hpp>

#include <cstddef>
#include <optional>
#include <span>

namespace unimem::detail {

/// Pieces that are the rows of a rectangle on both sides: equally long and equally far apart. Drivers have one command
/// for such.
struct PieceGrid {
  CopyPiece first;
  std::size_t rows = 0;
  std::size_t to_pitch = 0;  ///< from one row to the next
  std::size_t from_pitch = 0;

  /// The bytes that its rows reach over on one side, and what lies between them.
  [[nodiscard]] std::size_t to_span() const noexcept { return (rows - 1) * to_pitch + first.bytes; }
  [[nodiscard]] std::size_t from_span() const noexcept { return (rows - 1) * from_pitch + first.bytes; }
};

/// The rectangle that at least two pieces make, given from its first row to its last, none over another.
[[nodiscard]] inline std::optional<PieceGrid> grid_of(std::span<const CopyPiece> pieces) noexcept {
  if (pieces.size() < 2) return std::nullopt;
  auto const &first = pieces[0], &second = pieces[1];
  PieceGrid const grid{first, pieces.size(), second.to - first.to, second.from - first.from};
  if (second.to < first.to || second.from < first.from) return std::nullopt;
  if (grid.to_pitch < first.bytes || grid.from_pitch < first.bytes) return std::nullopt;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    auto const &before = pieces[i - 1], &piece = pieces[i];
    bool const next = piece.bytes == first.bytes && piece.to - before.to == grid.to_pitch &&
                      piece.from - before.from == grid.from_pitch && piece.to > before.to && piece.from > before.from;
    if (!next) return std::nullopt;
  }
  return grid;
}

}  // namespace unimem::detail
