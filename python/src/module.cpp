#include <unimem/core/build.hpp>
#include <unimem/core/log.hpp>
#include <unimem/core/stack.hpp>

#include <nanobind/nanobind.h>

#include <string>

#include "bindings.hpp"
#include "gil.hpp"

NB_MODULE(_unimem, m) {
  namespace python = unimem::python;
  // The GIL, threads of the library's that call Python, and the end of the process are all one interpreter's.
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "unimem works in the main interpreter of a process, and not in a subinterpreter");
    nanobind::raise_python_error();
  }
  m.doc() =
      "The C++ library as the package `unimem` uses it: names beginning with an underscore are the package's own.";
  // Buffers that live until the interpreter ends are no leak: the process gives everything back in order.
  nanobind::set_leak_warnings(false);
  if (python::names_places) unimem::set_place_describer(&python::noted_place);
  python::watch_waits();
  python::bind_errors(m);
  python::bind_devices(m);
  python::bind_managers(m);
  python::bind_host_arrays(m);
  python::bind_tensors(m);
  python::bind_windows(m);
  python::bind_blocks(m);
  python::bind_turns(m);
  python::bind_pools(m);
  python::bind_kernels(m);
  python::bind_reductions(m);
  python::bind_sharing(m);
  python::bind_streams(m);
  python::bind_outside_work(m);
  m.def("version", [] { return std::string(unimem::version()); }, "The version of the library.");
}
