#pragma once

#include <Python.h>

namespace unimem::python {

/// Lets go of a reference to a Python object from wherever one is: the library gives memory and work back on any
/// thread, under its own locks, and no thread may wait for the interpreter there. The object goes soon, on the main
/// thread; if the interpreter ends before, with the process.
void depart(PyObject* object) noexcept;

}  // namespace unimem::python
