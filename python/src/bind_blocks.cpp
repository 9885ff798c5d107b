#include <unimem/buffer/view.hpp>
#include <unimem/core/error.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "numpy_api.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

using Index = std::vector<std::size_t>;

/// The rows of a rectangular block, as bytes of the core, in order. Throws InvalidArgument unless it lies in the
/// window.
std::vector<ByteRange> rows_of(Window const& window, Index const& begin, Index const& count) {
  auto const& extents = window.shape();
  if (begin.size() != extents.size() || count.size() != extents.size()) {
    throw InvalidArgument("block", std::to_string(begin.size()) + " and " + std::to_string(count.size()) + " numbers",
                          "a begin and a count for each of " + std::to_string(extents.size()) + " dimensions");
  }
  detail::check_block(begin, count, extents);
  std::size_t rows = 1;
  for (std::size_t i = 0; i + 1 < count.size(); ++i) rows *= count[i];
  auto const run = (count.empty() ? 1 : count.back()) * window.item_bytes();
  std::vector<ByteRange> result;
  if (run == 0) return result;
  result.reserve(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    // Its index, innermost dimension first.
    std::size_t left = row, stride = 1, at = 0;
    for (auto i = count.size(); i-- > 0;) {
      auto const within = i + 1 == count.size() ? 0 : left % count[i];
      if (i + 1 != count.size()) left /= count[i];
      at += (begin[i] + within) * stride;
      stride *= extents[i];
    }
    auto const first = window.range().begin + at * window.item_bytes();
    result.push_back({first, first + run});
  }
  return result;
}

/// `array`: C-contiguous, of the block's dtype and shape, and no part of the buffer's own memory (checked in Python).
void read_block(Window& window, nb::handle array, Index const& begin, Index const& count) {
  auto const core = window.live();
  auto const rows = rows_of(window, begin, count);
  if (rows.empty()) return;
  look_out(*core, {rows.front().begin, rows.back().end});
  auto* to = static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
  unlocked([&] {
    core->bring_to_host(rows);
    for (auto const& row : rows) {
      core->read(row.begin, {to, row.size()});
      to += row.size();
    }
  });
}

void write_block(Window& window, nb::handle array, Index const& begin, Index const& count) {
  auto const core = window.live();
  auto const rows = rows_of(window, begin, count);
  if (rows.empty()) return;
  look_out(*core, {rows.front().begin, rows.back().end});
  auto const* from = static_cast<std::byte const*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
  unlocked([&] {
    for (auto const& row : rows) {
      core->write(row.begin, {from, row.size()});
      from += row.size();
    }
  });
}

void copy_block(Window& from, Index const& from_begin, Window& to, Index const& to_begin, Index const& count) {
  auto const source = from.live(), target = to.live();
  auto const sources = rows_of(from, from_begin, count), targets = rows_of(to, to_begin, count);
  if (sources.empty()) return;
  std::vector<CopyPiece> pieces;
  pieces.reserve(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    pieces.push_back({targets[i].begin, sources[i].begin, sources[i].size()});
  }
  look_out(*target, {targets.front().begin, targets.back().end});
  unlocked([&] { copy_pieces(*source, *target, pieces, from.item_bytes()); });
}

}  // namespace

void bind_blocks(nb::module_& m) {
  m.def("_read_block", &read_block, nb::arg("window"), nb::arg("array"), nb::arg("begin"), nb::arg("count"));
  m.def("_write_block", &write_block, nb::arg("window"), nb::arg("array"), nb::arg("begin"), nb::arg("count"));
  m.def("_copy_block", &copy_block, nb::arg("source"), nb::arg("source_begin"), nb::arg("target"),
        nb::arg("target_begin"), nb::arg("count"));
}

}  // namespace unimem::python
