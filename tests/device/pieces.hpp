#pragma once

#include <unimem/device/memory.hpp>

#include "device/conformance_fixture.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace unimem {

/// A list of pieces and what it is an example of.
struct PieceList {
  char const* what;
  std::vector<CopyPiece> pieces;
};

/// The rows of a rectangle: `rows` of `bytes`, so far apart on either side.
[[nodiscard]] inline std::vector<CopyPiece> rows(std::size_t rows, std::size_t bytes, CopyPiece first,
                                                 std::size_t to_pitch, std::size_t from_pitch) {
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < rows; ++i) {
    pieces.push_back({first.to + i * to_pitch, first.from + i * from_pitch, bytes});
  }
  return pieces;
}

/// Pieces of lengths and places that are nobody's multiples, in no order, the targets apart.
[[nodiscard]] inline std::vector<CopyPiece> scattered(std::size_t count, std::size_t longest, std::size_t room,
                                                      unsigned seed) {
  std::minstd_rand random{seed};
  std::vector<CopyPiece> pieces;
  auto const stride = room / count;
  for (std::size_t i = 0; i < count; ++i) {
    auto const bytes = 1 + random() % std::min(longest, stride);
    pieces.push_back({i * stride + random() % (stride - bytes + 1), random() % (room - bytes), bytes});
  }
  std::ranges::shuffle(pieces, random);
  return pieces;
}

inline std::vector<PieceList> piece_lists(std::size_t room) {
  return {
      {"one", {{7, 11, 100}}},
      {"one, and others that are empty", {{room, 0, 0}, {5, 9, 100}, {0, room, 0}}},
      {"two that touch", {{0, 10, 10}, {10, 0, 10}}},
      {"rows of a rectangle", rows(20, 700, {3, 5, 0}, 1024, 1000)},
      {"narrow rows", rows(100, 3, {1, 2, 0}, 17, 64)},
      {"rows without gaps", rows(10, 512, {0, 0, 0}, 512, 512)},
      {"rows packed on one side", rows(30, 600, {0, 64, 0}, 600, 2000)},
      {"a column of single bytes", rows(200, 1, {0, 0, 0}, 1, 300)},
      {"rows from the last to the first",
       [] {
         auto list = rows(20, 700, {3, 5, 0}, 1024, 1000);
         std::ranges::reverse(list);
         return list;
       }()},
      {"rows of which one is shorter",
       [] {
         auto list = rows(20, 700, {3, 5, 0}, 1024, 1000);
         list[13].bytes = 699;
         return list;
       }()},
      {"a few scattered pieces", scattered(10, 5000, room, 1)},
      {"many small scattered pieces", scattered(500, 90, room, 2)},
  };
}

/// What `target` looks like afterwards.
[[nodiscard]] inline Bytes after(Bytes target, Bytes const& source, std::vector<CopyPiece> const& pieces) {
  for (auto const& [to, from, bytes] : pieces) {
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                target.begin() + static_cast<std::ptrdiff_t>(to));
  }
  return target;
}

[[nodiscard]] inline std::pair<std::uint64_t, std::uint64_t> sums(std::vector<CopyPiece> const& pieces) {
  std::uint64_t copies = 0, bytes = 0;
  for (auto const& piece : pieces) {
    copies += piece.bytes != 0 ? 1 : 0;
    bytes += piece.bytes;
  }
  return {copies, bytes};
}

}  // namespace unimem
