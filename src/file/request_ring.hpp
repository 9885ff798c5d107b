#pragma once

#include "file/block_reads.hpp"

namespace unimem::detail {

/// Makes all requests of `reads`, of the open file `descriptor`, by io_uring, which has several under way for one
/// thread; returns when none is. False, with nothing done: there is no ring to be had. That is so where the library was
/// built without liburing, and where the kernel refuses one (ENOSYS of old ones; EPERM, as many containers have it;
/// EMFILE). A process keeps the rings that it has made for its next reads. Thread-safe. Throws std::bad_alloc.
[[nodiscard]] bool read_by_ring(int descriptor, BlockReads& reads);

}  // namespace unimem::detail
