#pragma once

#include <unimem/buffer/buffer_slice.hpp>
#include <unimem/core/size.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace unimem {

namespace detail {
/// Throws InvalidArgument unless every index lies below its extent, naming the first that does not.
UNIMEM_API void check_index(std::span<const std::size_t> index, std::span<const std::size_t> extents);
/// Throws InvalidArgument unless `[begin, begin + count)` lies within an extent, for every dimension.
UNIMEM_API void check_block(std::span<const std::size_t> begin, std::span<const std::size_t> count,
                            std::span<const std::size_t> extents);
/// The product; SizeMismatch unless it is `size`, InvalidArgument if it does not fit 64 bits.
UNIMEM_API void check_extents(std::span<const std::size_t> extents, std::size_t size);
}  // namespace detail

/// Elements of a buffer seen as a row-major array of `Rank` dimensions, outermost first. Shares memory and coherence
/// with the buffer and keeps them alive, as a slice does; nothing is copied to make one. All bounds are checked, in 64
/// bits.
template <class T, std::size_t Rank>
class BufferView {
 public:
  using Index = std::array<std::size_t, Rank>;

  /// Throws SizeMismatch unless the extents multiply to the number of elements.
  BufferView(BufferSlice<T> elements, Index extents) : elements_(std::move(elements)), extents_(extents) {
    detail::check_extents(extents_, elements_.size());
  }

  [[nodiscard]] static constexpr std::size_t rank() noexcept { return Rank; }
  [[nodiscard]] Index extents() const noexcept { return extents_; }
  /// The length of one dimension: the number of rows is `extent(0)`. Throws InvalidArgument for one beyond the rank.
  [[nodiscard]] std::size_t extent(std::size_t dimension) const {
    detail::check_dimension(dimension, Rank);
    return extents_[dimension];
  }
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }

  /// All elements, in order.
  [[nodiscard]] BufferSlice<T> const& elements() const noexcept { return elements_; }

  /// One element on the host, current. The mutable form counts it as written.
  [[nodiscard]] T& at(Index index) & { return elements_.at(offset_of(index)); }
  [[nodiscard]] T const& at(Index index) const& { return elements_.at(offset_of(index)); }

  /// The elements of one outermost index: a row of a matrix, a plane of a volume.
  [[nodiscard]] BufferSlice<T> row(std::size_t index) const {
    Index first{};
    first[0] = index;
    auto const stride = extents_[0] == 0 ? 0 : size() / extents_[0];
    return elements_.slice(offset_of(first), stride);
  }

  /// Copies a rectangular block out, row by row, into `data`, which has room for exactly its elements (SizeMismatch).
  /// Only the rows of the block are brought to the host, all of them at once. `data` may be the buffer's own memory:
  /// the result is as if the block had been copied aside first.
  void copy_block_to(Index begin, Index count, std::span<T> data) const {
    if (is_own(data)) {
      std::vector<T> aside(data.size());
      copy_block_to(begin, count, aside);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = aside[i];
      return;
    }
    std::vector<ByteRange> rows;
    each_run("copy_block_to", begin, count, data.size(), [&](std::size_t from, std::size_t run, std::size_t) {
      auto const first = elements_.offset_bytes() + from * sizeof(T);
      rows.push_back({first, first + run * sizeof(T)});
    });
    if (!rows.empty()) elements_.core().bring_to_host(rows);
    each_run("copy_block_to", begin, count, data.size(), [&](std::size_t from, std::size_t run, std::size_t at) {
      elements_.copy_to(data.subspan(at, run), from);
    });
  }

  /// Replaces a rectangular block on the host with `data`, which has exactly its elements (SizeMismatch, before
  /// anything happens), which may be the buffer's own: as if they had been copied aside first. Elements around the
  /// block are not touched on either side.
  void copy_block_from(Index begin, Index count, std::span<const T> data) {
    if (is_own(data)) return copy_block_from(begin, count, std::vector<T>(data.begin(), data.end()));
    each_run("copy_block_from", begin, count, data.size(),
             [&](std::size_t to, std::size_t run, std::size_t at) { elements_.copy_from(data.subspan(at, run), to); });
  }

  /// Copies a block of one view to a block of another, along the nearest path: on the device if the source is current
  /// there alone, its rows as one piece of work (`copy_pieces`), else row by row. The two blocks may overlap: the
  /// result is as if the source had been copied aside first, for which memory of the block's size is taken. Throws
  /// InvalidArgument unless both blocks lie in their views, OutOfMemory without that memory.
  friend void copy_block(BufferView const& from, Index from_begin, BufferView& to, Index to_begin, Index count) {
    detail::check_block(from_begin, count, from.extents_);
    detail::check_block(to_begin, count, to.extents_);
    std::vector<CopyPiece> rows;
    auto const base = std::array{from.elements_.offset_bytes(), to.elements_.offset_bytes()};
    for_each_row(count, [&](Index row, std::size_t run) {
      auto source = from_begin, target = to_begin;
      for (std::size_t i = 0; i < Rank; ++i) {
        source[i] += row[i];
        target[i] += row[i];
      }
      rows.push_back({base[1] + to.raw_offset(target) * sizeof(T), base[0] + from.raw_offset(source) * sizeof(T),
                      run * sizeof(T)});
    });
    if (!rows.empty()) copy_pieces(from.elements_.core(), to.elements_.core(), rows, sizeof(T));
  }

 private:
  [[nodiscard]] std::size_t raw_offset(Index index) const noexcept {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < Rank; ++i) offset = offset * extents_[i] + index[i];
    return offset;
  }
  [[nodiscard]] bool is_own(std::span<const T> data) const {
    return elements_.core().is_own_host_memory(data.data(), data.size_bytes());
  }
  [[nodiscard]] std::size_t offset_of(Index index) const {
    detail::check_index(index, extents_);
    return raw_offset(index);
  }

  /// Calls `f(first index of a row, its length)` for every innermost row of a block at the origin.
  template <class F>
  static void for_each_row(Index count, F const& f) {
    for (auto const extent : count) {
      if (extent == 0) return;
    }
    Index row{};
    for (;;) {
      f(row, count[Rank - 1]);
      std::size_t dimension = Rank - 1;
      for (;;) {
        if (dimension == 0) return;
        --dimension;
        if (++row[dimension] < count[dimension]) break;
        row[dimension] = 0;
      }
    }
  }

  template <class F>
  void each_run(char const* what, Index begin, Index count, std::size_t given, F const& f) const {
    detail::check_block(begin, count, extents_);
    std::size_t elements = 1;
    for (auto const extent : count) elements *= extent;
    if (given != elements) detail::throw_size_mismatch(what, elements, given);
    std::size_t at = 0;
    for_each_row(count, [&](Index row, std::size_t run) {
      for (std::size_t i = 0; i < Rank; ++i) row[i] += begin[i];
      f(raw_offset(row), run, at);
      at += run;
    });
  }

  BufferSlice<T> elements_;
  Index extents_;
};

}  // namespace unimem
