#include "lent_buffer.hpp"

#include <nanobind/nanobind.h>

#include <exception>
#include <new>
#include <utility>

#include "host_array.hpp"
#include "numpy_api.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// What a view keeps: the plain array's own view, whose shape and strides it shows, and the lease.
struct Lent {
  Py_buffer inner{};
  std::unique_ptr<WriteLease> lease;
};

/// NumPy's own, for what it would do.
int give_plainly(PyObject* array, Py_buffer* view, int flags) noexcept {
  auto const result = PyArray_Type.tp_as_buffer->bf_getbuffer(array, view, flags);
  if (result == 0) view->internal = nullptr;  // it keeps nothing there, and has nothing to release
  return result;
}

int give_to_read(PyObject* array, Py_buffer* view, int flags) noexcept {
  auto const plain = nb::steal(PyArray_View(reinterpret_cast<PyArrayObject*>(array), nullptr, &PyArray_Type));
  if (!plain.is_valid()) return -1;
  PyArray_CLEARFLAGS(reinterpret_cast<PyArrayObject*>(plain.ptr()), NPY_ARRAY_WRITEABLE);
  return PyObject_GetBuffer(plain.ptr(), view, flags);
}

/// The same for a HostArray.
int give_array(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  try {
    auto* const hold = hold_of(self);
    bool const writable = PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject*>(self));
    if (hold == nullptr || !writable || !hold->has_to_be_told()) return give_plainly(self, view, flags);
    if ((flags & PyBUF_WRITABLE) != PyBUF_WRITABLE) return give_to_read(self, view, flags);
    auto const plain = make_plain_array_over(self, nb::none());
    auto write = hold->before_write(self, 0, nb::none());
    if (!write) return give_plainly(self, view, flags);
    lend(self, plain, std::make_unique<WriteLease>(std::move(*write), Taker::writes), view, flags);
    return 0;
  } catch (...) {
    raise_in_python();
  }
  return -1;
}

}  // namespace

void lend(nb::handle lender, nb::handle plain, std::unique_ptr<WriteLease> lease, Py_buffer* view, int flags) {
  std::unique_ptr<Lent> lent(new (std::nothrow) Lent);
  if (!lent) {
    lease->give_up();
    throw std::bad_alloc();
  }
  if (PyObject_GetBuffer(plain.ptr(), &lent->inner, flags) != 0) {
    lease->give_up();
    nb::raise_python_error();
  }
  lent->lease = std::move(lease);
  *view = lent->inner;
  view->obj = nb::borrow(lender).release().ptr();
  view->internal = lent.release();
}

int lend_to_write(nb::handle window, Py_buffer* view, int flags) {
  auto const& lent_of = window_of(window);
  auto lease = std::make_unique<WriteLease>(lent_of, Taker::writes);
  nb::object plain;
  try {
    plain = make_plain_array(lease->address(), lent_of.shape(), lent_of.dtype(), true, nb::none());
  } catch (...) {
    lease->give_up();
    throw;
  }
  lend(window, plain, std::move(lease), view, flags);
  return 0;
}

void take_back(PyObject* /*lender*/, Py_buffer* view) noexcept {
  std::unique_ptr<Lent> const lent(static_cast<Lent*>(std::exchange(view->internal, nullptr)));
  if (lent) PyBuffer_Release(&lent->inner);
}

void raise_in_python() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (std::bad_alloc const&) {
    PyErr_NoMemory();
  } catch (std::exception const& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  }
}

void lend_arrays_to_write(PyTypeObject* host_array) {
  // Of its own: a class that Python makes has copies of its base's.
  host_array->tp_as_buffer->bf_getbuffer = &give_array;
  host_array->tp_as_buffer->bf_releasebuffer = &take_back;
  PyType_Modified(host_array);
}

}  // namespace unimem::python
