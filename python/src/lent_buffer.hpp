#pragma once

#include <nanobind/nanobind.h>

#include <Python.h>

#include <memory>

#include "write_lease.hpp"

namespace unimem::python {

/// Fills Python's view of `lender` with what `plain`, an array over the lease's memory, shows, as `flags` ask. The
/// lease ends when the view is released, by `take_back`. Throws what Python raises; nothing was handed over then.
void lend(nanobind::handle lender, nanobind::handle plain, std::unique_ptr<WriteLease> lease, Py_buffer* view,
          int flags);

/// Python's `bf_getbuffer` of a window with PyBUF_WRITABLE.
int lend_to_write(nanobind::handle window, Py_buffer* view, int flags);

/// Its `bf_releasebuffer`, also of an array.
void take_back(PyObject* lender, Py_buffer* view) noexcept;

/// What was thrown, as Python's error; for functions that Python calls.
void raise_in_python() noexcept;

/// Gives unimem.HostArray, which is a class of Python's, a buffer protocol of its own in the place of NumPy's. A
/// request with PyBUF_WRITABLE is a write lease; any other gets memory to read, since nobody is told what is written to
/// it. Arrays whose writes have not to be told, or are nobody's, have NumPy's own.
void lend_arrays_to_write(PyTypeObject* host_array);

}  // namespace unimem::python
