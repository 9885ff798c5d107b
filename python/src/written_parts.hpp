#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <nanobind/nanobind.h>

namespace unimem::python {

/// What writing to a NumPy array's elements writes, in bytes from its lowest element on: rows where it is strided,
/// empty for all that lies between its ends. Gaps that are not worth their bookkeeping count as written, and so do all
/// where there would be too many.
///
/// `chosen`: an array of ascending indexes along `axis`, the only ones that are written; None for all.
[[nodiscard]] ByteRanges written_parts(nanobind::handle array, int axis, nanobind::handle chosen);

}  // namespace unimem::python
