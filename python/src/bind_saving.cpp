#include <unimem/buffer/sleep.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/save.hpp>

#include <nanobind/nanobind.h>

#include <string>

#include "bindings.hpp"
#include "gil.hpp"

namespace unimem::python {

namespace nb = nanobind;

void bind_saving(nb::class_<MemoryManager>& manager) {
  manager.def("_save", [](MemoryManager& self, std::string const& path) { unlocked([&] { save(self, path); }); })
      .def("_restore", [](MemoryManager& self, std::string const& path) { unlocked([&] { restore(self, path); }); })
      .def("_sleep",
           [](MemoryManager& self, std::string const& tag) { return unlocked([&] { return sleep(self, tag); }); })
      .def("_wake",
           [](MemoryManager& self, std::string const& tag) { return unlocked([&] { return wake(self, tag); }); });
}

}  // namespace unimem::python
