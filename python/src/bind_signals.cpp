#include <unimem/device/discovery.hpp>
#include <unimem/manager/links.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/manager/pressure.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "departures.hpp"
#include "gil.hpp"
#include "manager_records.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// What it raises is logged and counted by the manager. The package ends all subscriptions before the interpreter ends,
/// so that no call can be waiting for its lock then.
PressureCallback calling(nb::object const& callback) {
  std::shared_ptr<PyObject> const function(callback.inc_ref().ptr(), [](PyObject* object) { depart(object); });
  return [function](PressureChange const& change) {
    if (Ending::leaves_out_this_thread()) return;
    nb::gil_scoped_acquire const acquired;
    nb::borrow(function.get())(record_of(change));
  };
}

std::vector<std::reference_wrapper<Device>> devices_in(nb::handle list) {
  std::vector<std::reference_wrapper<Device>> result;
  for (nb::handle one : list) result.emplace_back(nb::cast<Device&>(one));
  return result;
}

}  // namespace

void bind_signals(nb::module_& m, nb::class_<MemoryManager>& manager) {
  nb::class_<PressureSubscription>(m, "_PressureSubscription")
      .def(
          "end", [](PressureSubscription& self) { unlocked([&] { self.end(); }); },
          "Waits for a call that is going on, but for one that it is ended from.");
  manager
      .def(
          "_on_pressure",
          [](MemoryManager& self, nb::object const& callback) {
            auto call = calling(callback);
            return unlocked([&] { return std::make_unique<PressureSubscription>(self.on_pressure(std::move(call))); });
          },
          nb::arg("callback"))
      .def(
          "_pressure",
          [](MemoryManager& self, Device& on, int location) {
            auto const level = unlocked([&] { return self.pressure(on, static_cast<Location>(location)); });
            return Conversion<PressureLevel>::to(level);
          },
          nb::sig("def _pressure(self, on: Device, location: int, /) -> unimem._enums.PressureLevel"))
      .def(
          "_settle_pressure", [](MemoryManager& self) { unlocked([&] { self.settle_pressure(); }); },
          "Returns when callbacks have been told all that was noticed before.")
      .def(
          "_links",
          [](MemoryManager& self, nb::list const& devices) {
            auto const wanted = devices_in(devices);
            auto const links = unlocked([&] { return self.links().among(wanted); });
            return Conversion<std::vector<Link>>::to(links);
          },
          nb::sig("def _links(self, devices: list[Device], /) -> tuple[unimem._manager_records.Link, ...]"));
}

}  // namespace unimem::python
