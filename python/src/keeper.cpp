#include <Python.h>

#include <unimem/share/detail/sent_buffers.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

// A second module in the same file, `_keeper`, for the process that keeps what another has sent: it imports neither
// NumPy nor the package, which takes ten times as long.

namespace {

/// keep(socket, pid, started, pid, started, …)
PyObject* keep(PyObject* /*module*/, PyObject* numbers) {
  std::vector<std::uint64_t> given;
  for (Py_ssize_t at = 0; at < PyTuple_Size(numbers); ++at) {
    given.push_back(PyLong_AsUnsignedLongLong(PyTuple_GetItem(numbers, at)));
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  if (given.size() % 2 == 0) {
    PyErr_SetString(PyExc_TypeError, "keep(socket, pid, started, …): the numbers of a process come in pairs");
    return nullptr;
  }
  std::vector<unimem::detail::RunningProcess> receivers;
  for (std::size_t at = 1; at < given.size(); at += 2) {
    receivers.push_back({static_cast<std::uint32_t>(given[at]), given[at + 1]});
  }
  try {
    unimem::detail::keep_sent(static_cast<int>(given[0]), receivers);
  } catch (std::exception const& error) {
    PyErr_SetString(PyExc_OSError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"keep", keep, METH_VARARGS, nullptr}, {}};
PyModuleDef definition{PyModuleDef_HEAD_INIT, "_keeper", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// The interpreter's name for it.
// NOLINTNEXTLINE(bugprone-reserved-identifier, readability-identifier-naming)
PyMODINIT_FUNC PyInit__keeper() {
  return PyModule_Create(&definition);
}
