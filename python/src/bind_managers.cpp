#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/detail/default_spill.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "gil.hpp"
#include "manager_records.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

void bind_pool(nb::module_& m) {
  nb::class_<MemoryPool>(m, "_BlockPool", "The blocks of one location of one device.")
      .def(
          "_statistics",
          [](MemoryPool const& self) {
            auto const statistics = unlocked([&] { return self.statistics(); });
            return record_of(statistics);
          },
          nb::sig("def _statistics(self) -> unimem._manager_records.BlockStatistics"))
      .def(
          "_fragmentation",
          [](MemoryPool const& self) {
            auto const fragmentation = unlocked([&] { return self.fragmentation(); });
            return record_of(fragmentation);
          },
          nb::sig("def _fragmentation(self) -> unimem._manager_records.PoolFragmentation"))
      .def("_trim",
           [](MemoryPool& self, std::size_t keep_bytes) { return unlocked([&] { return self.trim(keep_bytes); }); })
      .def(
          "_defragment",
          [](MemoryPool& self, std::size_t max_moved_bytes) {
            auto const done = unlocked([&] { return self.defragment({.max_moved_bytes = max_moved_bytes}); });
            return record_of(done);
          },
          nb::sig("def _defragment(self, max_moved_bytes: int, /) -> unimem._manager_records.PoolDefragmentation"));
}

}  // namespace

void bind_managers(nb::module_& m) {
  bind_pool(m);
  nb::class_<MemoryManager> manager(m, "_MemoryManager", "Memory of every device and location, with limits.");
  manager.def_prop_ro("_id", [](MemoryManager const& self) { return reinterpret_cast<std::uintptr_t>(&self); })
      .def_prop_ro("_spills", [](MemoryManager& self) { return self.spill_files() != nullptr; })
      .def("_available",
           [](MemoryManager& self, Device& on) { return unlocked([&] { return self.available_memory(on); }); })
      .def("_total", [](MemoryManager& self, Device& on) { return unlocked([&] { return self.total_memory(on); }); })
      .def("_set_limit",
           [](MemoryManager& self, Device& on, int location, std::size_t bytes) {
             unlocked([&] {
               location < 0 ? self.set_limit(on, bytes) : self.set_limit(on, static_cast<Location>(location), bytes);
             });
           })
      .def(
          "_limit",
          [](MemoryManager& self, Device& on, int location) {
            return unlocked([&] {
              auto const place = location < 0 ? Location::device : static_cast<Location>(location);
              auto const limit = location < 0 ? self.total_memory(on) : self.limit(on, place);
              return limit >= self.pool(on, place).device().info().total_bytes ? std::numeric_limits<std::size_t>::max()
                                                                               : limit;
            });
          },
          "What bounds it; the largest number where that is the device's capacity alone.")
      .def(
          "_pool",
          [](MemoryManager& self, Device& on, int location) {
            return unlocked([&] { return &self.pool(on, static_cast<Location>(location)); });
          },
          nb::rv_policy::reference)
      .def(
          "_defragment",
          [](MemoryManager& self, Device& on, std::size_t max_moved_bytes, std::size_t max_copied_bytes) {
            DefragmentationLimits const limits{.max_moved_bytes = max_moved_bytes,
                                               .max_copied_bytes = max_copied_bytes};
            auto const done = unlocked([&] { return self.defragment(on, limits); });
            return record_of(done);
          },
          nb::sig("def _defragment(self, on: Device, max_moved_bytes: int, max_copied_bytes: int, /) "
                  "-> unimem._manager_records.PoolDefragmentation"))
      .def(
          "cleanup", [](MemoryManager& self) { return unlocked([&] { return self.cleanup(); }); },
          "Gives all cached blocks back; returns the bytes. Never touches live memory.");
  bind_reports(m, manager);
  bind_signals(m, manager);
  bind_saving(manager);
  m.def("_spill_by_default_in", [](std::string directory) { detail::spill_by_default_in(std::move(directory)); });
  m.def("_default_manager", [] { return unlocked([] { return &default_manager(); }); }, nb::rv_policy::reference);
  // Everything allocated from a manager must be gone before it, arrays and ids of buffers included, which no caller can
  // promise for a garbage collector: so it stays. What it holds goes back by `cleanup`.
  m.def(
      "_new_manager",
      [](std::size_t stacks_every, std::string spill_directory, bool zero_on_release) {
        ManagerOptions options;
        options.pools.zero_on_release = zero_on_release;
        options.leaks.stacks.every = stacks_every;
        options.spill.directory = std::move(spill_directory);
        return unlocked([&] { return new MemoryManager(std::move(options)); });
      },
      nb::arg("stacks_every"), nb::arg("spill_directory"), nb::arg("zero_on_release"), nb::rv_policy::reference);
}

}  // namespace unimem::python
