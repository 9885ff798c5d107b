#include <unimem/buffer/double_buffer.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include "bindings.hpp"

namespace unimem::python {

namespace nb = nanobind;

/// The turns of two buffers. Nothing here waits: that is done in Python, where Ctrl-C ends it.
void bind_turns(nb::module_& m) {
  using detail::BufferTurns;
  nb::class_<BufferTurns>(m, "_BufferTurns")
      .def(nb::init<>())
      .def("try_back", [](BufferTurns& self) { return self.take_back(false); })
      .def("try_front", [](BufferTurns& self) { return self.take_front(false); })
      .def("publish", &BufferTurns::publish)
      .def("release", &BufferTurns::release)
      .def("swap", &BufferTurns::swap)
      .def("close", &BufferTurns::close)
      .def_prop_ro("closed", &BufferTurns::closed);
}

}  // namespace unimem::python
