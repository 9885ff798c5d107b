#pragma once

#include <unimem/core/name.hpp>

namespace unimem::python {

/// Where in the Python program the package was called, which stands for the name of a buffer made there: the innermost
/// function that is not the package's own. Empty where no Python code called. With the interpreter's lock.
[[nodiscard]] Name calling_site();

}  // namespace unimem::python
