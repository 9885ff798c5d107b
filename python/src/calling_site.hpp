#pragma once

#include <unimem/core/name.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace unimem {
class MemoryManager;
}

namespace unimem::python {

/// Where in the Python program the package was called, which stands for the name of a buffer made there: the innermost
/// function that is not the package's own. Empty where no Python code called. With the interpreter's lock.
[[nodiscard]] Name calling_site();

/// The functions that called on this thread and are not the package's own, the innermost first: "solve() at
/// solver.py:12". With the interpreter's lock; costs a fraction of a microsecond for each.
[[nodiscard]] std::vector<std::string> calling_frames(std::size_t most = 32);

/// The same as `BufferOptions::made_by` has them: for one of as many buffers as the manager captures one stack of. Null
/// where it captures none. With the interpreter's lock.
[[nodiscard]] std::shared_ptr<std::vector<std::uintptr_t> const> calls_of_python(MemoryManager const& manager);

}  // namespace unimem::python
