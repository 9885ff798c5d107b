#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/json.hpp>
#include <unimem/report/text.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings.hpp"
#include "gil.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

nb::dict statistics_of(GlobalMemoryStatistics const& s) {
  nb::dict result;
  result["total_allocations"] = s.total_allocations;
  result["active_allocations"] = s.active_allocations;
  result["active_bytes"] = s.active_bytes;
  result["pooled_bytes"] = s.pooled_bytes;
  result["reserved_bytes"] = s.reserved_bytes;
  result["reclaims"] = s.reclaims;
  result["failed_reclaims"] = s.failed_reclaims;
  result["reclaimed_bytes"] = s.reclaimed_bytes;
  result["cache_trims"] = s.cache_trims;
  result["waits"] = s.waits;
  result["refusals"] = s.refusals;
  return result;
}

}  // namespace

void bind_managers(nb::module_& m) {
  nb::class_<MemoryManager>(m, "_MemoryManager", "Memory of every device and location, with limits.")
      .def_prop_ro("_id", [](MemoryManager const& self) { return reinterpret_cast<std::uintptr_t>(&self); })
      .def("_available",
           [](MemoryManager& self, Device& on) { return unlocked([&] { return self.available_memory(on); }); })
      .def("_total", [](MemoryManager& self, Device& on) { return unlocked([&] { return self.total_memory(on); }); })
      .def("_set_limit",
           [](MemoryManager& self, Device& on, std::size_t bytes) { unlocked([&] { self.set_limit(on, bytes); }); })
      .def(
          "cleanup", [](MemoryManager& self) { return unlocked([&] { return self.cleanup(); }); },
          "Gives all cached blocks back; returns the bytes. Never touches live memory.")
      .def("_statistics",
           [](MemoryManager const& self) {
             auto const statistics = unlocked([&] { return self.statistics(); });
             return statistics_of(statistics);
           })
      .def(
          "to_json", [](MemoryManager const& self) { return unlocked([&] { return to_json(self.statistics()); }); },
          "The statistics as one JSON object, pools and size classes included.");
  m.def("_default_manager", [] { return unlocked([] { return &default_manager(); }); }, nb::rv_policy::reference);
  // Everything allocated from a manager must be gone before it, arrays and ids of buffers included, which nobody can
  // promise for a garbage collector: so it stays. What it holds goes back by `cleanup`.
  m.def("_new_manager", [] { return unlocked([] { return new MemoryManager; }); }, nb::rv_policy::reference);
}

}  // namespace unimem::python
