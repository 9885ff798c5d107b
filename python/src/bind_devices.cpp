#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/duration.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <chrono>
#include <limits>
#include <optional>
#include <string>

#include "bindings.hpp"
#include "gil.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

nb::dict info_of(Device const& device) {
  auto const& info = device.info();
  nb::dict result;
  result["name"] = info.name;
  result["vendor"] = info.vendor;
  result["driver"] = info.driver;
  result["total_bytes"] = info.total_bytes;
  result["max_allocation"] = info.max_allocation;
  result["alignment"] = info.alignment;
  result["compute_units"] = info.compute_units;
  result["is_gpu"] = info.is_gpu;
  result["integrated"] = info.integrated;
  result["doubles"] = info.doubles;
  result["atomics64"] = info.atomics64;
  result["max_group_items"] = info.max_group_items;
  result["group_memory_bytes"] = info.group_memory_bytes;
  result["compiles_source"] = info.compiles_source;
  result["runs_host_form"] = info.runs_host_form;
  result["limited_by"] = info.limited_by;
  return result;
}

nb::dict transfers_of(Device const& device) {
  auto const t = device.transfers();
  nb::dict result;
  result["host_to_device_bytes"] = t.host_to_device_bytes;
  result["host_to_device_copies"] = t.host_to_device_copies;
  result["device_to_host_bytes"] = t.device_to_host_bytes;
  result["device_to_host_copies"] = t.device_to_host_copies;
  result["device_to_device_bytes"] = t.device_to_device_bytes;
  result["device_to_device_copies"] = t.device_to_device_copies;
  result["host_to_device_nanoseconds"] = t.host_to_device_nanoseconds;
  result["device_to_host_nanoseconds"] = t.device_to_host_nanoseconds;
  result["device_to_device_nanoseconds"] = t.device_to_device_nanoseconds;
  result["untimed_copies"] = t.untimed_copies;
  return result;
}

void bind_device(nb::module_& m) {
  nb::class_<Device>(m, "Device", nb::is_final(),
                     "One device, and the only way to its memory. Lives as long as the process.")
      .def_prop_ro(
          "id", [](Device const& self) { return std::string(self.id()); }, "\"cpu\", \"opencl:0\", \"sim:0\", …")
      .def_prop_ro(
          "backend", [](Device const& self) { return std::string(to_string(self.backend())); },
          "\"cpu\", \"opencl\", \"cuda\", \"metal\" or \"sim\".")
      .def("_info", &info_of)
      // Asked at every launch.
      .def_prop_ro("_runs_host_form", [](Device const& self) { return self.info().runs_host_form; })
      .def("_memory_info",
           [](Device const& self) {
             auto const info = unlocked([&] { return self.memory_info(); });
             return nb::make_tuple(info.free_bytes, info.total_bytes);
           })
      .def("_transfers", &transfers_of)
      .def_prop_ro("shares_storage_with_host", &Device::shares_storage_with_host,
                   "Whether its memory is the host's, so that nothing is ever copied.")
      .def(
          "synchronize",
          [](Device& self) {
            // What the package submits is in this queue; the rest is then not much.
            wait_for_end(unlocked([&] { return self.default_queue().record(); }));
            unlocked([&] { self.synchronize(); });
          },
          "Waits for all work submitted so far to every queue of this device. Ctrl-C ends the waiting.")
      .def(
          "keep_durations", [](Device& self) { unlocked([&] { keep_durations(self.default_queue()); }); },
          "From here on ``event.duration`` tells how long a launch on this device took, of the 1,024 that ended "
          "last.\n\n"
          "UnsupportedOperation where the driver keeps no times: open the device as ``opencl:0,profile=1`` or "
          "``cuda:0,profile=1``.")
      .def(
          "__eq__",
          [](Device const& self, nb::handle other) {
            return nb::isinstance<Device>(other) && &self == &nb::cast<Device const&>(other);
          },
          nb::arg("other").none())
      .def("__hash__", [](Device const& self) { return std::hash<Device const*>{}(&self); })
      .def("__repr__", [](Device const& self) { return "<unimem.Device '" + std::string(self.id()) + "'>"; })
      .def(
          "__enter__", [](nb::object self) { return nb::module_::import_("unimem._devices").attr("_enter")(self); },
          nb::sig("def __enter__(self) -> Device"),
          "From here to the end of the block it takes the place of the default device for what this thread, or task, "
          "makes.")
      .def(
          "__exit__",
          [](nb::handle /*self*/, nb::args const& /*exception*/) {
            nb::module_::import_("unimem._devices").attr("_leave")();
          },
          nb::sig("def __exit__(self, *exception: object) -> None"))
      .def(
          "_repr_html_",
          [](nb::handle self) { return nb::module_::import_("unimem._devices").attr("_device_html")(self); },
          nb::sig("def _repr_html_(self) -> str"))
      // Devices are the process's: another one has to look for its own.
      .def("__reduce__", [](nb::handle self) {
        auto const id = std::string(nb::cast<Device const&>(self).id());
        return nb::make_tuple(nb::module_::import_("unimem._devices").attr("_device_of"), nb::make_tuple(id));
      });

  m.def(
      "devices",
      [] {
        auto const all = unlocked([] { return devices(); });
        nb::list result;
        for (Device& one : all) result.append(nb::cast(&one, nb::rv_policy::reference));
        return result;
      },
      nb::sig("def devices() -> list[Device]"), "Every device of the process, \"cpu\" first.");
  m.def(
      "device",
      [](nb::handle id) {
        std::string name;
        if (!nb::try_cast(id, name)) {
          throw InvalidArgument("id", nb::repr(id).c_str(), "text, such as \"cpu\" or \"sim:memory=1GiB\"");
        }
        return unlocked([&] { return &device(name); });
      },
      nb::arg("id").none(), nb::rv_policy::reference, nb::sig("def device(id: str) -> Device"),
      "The device with this id. ``sim:memory=1GiB,latency=10us`` is a simulated one: the same options are the same "
      "device.\n\n"
      "NotFound lists what there is; InvalidArgument for what is no text.");
  m.def(
      "make_sim",
      [](nb::handle options) {
        std::string text;
        if (!nb::try_cast(options, text)) {
          throw InvalidArgument("options", nb::repr(options).c_str(), "text, such as \"memory=1GiB,latency=10us\"");
        }
        return unlocked([&] { return &make_sim(parse_sim_options(text)); });
      },
      nb::arg("options").none() = "", nb::rv_policy::reference, nb::sig("def make_sim(options: str = '') -> Device"),
      "A new simulated device, which lives as long as the process; ``device(\"sim:…\")`` never names it, its id "
      "does.\n\n"
      "Options as there: ``memory=1GiB,latency=10us``. Raises InvalidArgument for what it cannot read.");
  m.def(
      "default_device", [] { return unlocked([] { return &default_device(); }); }, nb::rv_policy::reference,
      "UNIMEM_DEVICE if set, else the first of cuda, metal, a GPU under OpenCL, cpu. Decided once.");
  m.def("_unavailable_backends", [] {
    auto const all = unlocked([] { return unavailable_backends(); });
    nb::list result;
    for (auto const& one : all) result.append(nb::make_tuple(std::string(to_string(one.backend)), one.reason));
    return result;
  });
}

void bind_event(nb::module_& m) {
  nb::class_<Event>(m, "Event", nb::is_final(), "The end of a piece of work. Stays valid when its queue is gone.")
      .def("__repr__",
           [](Event const& self) {
             return std::string("<unimem.Event: the work ") + (self.ready() ? "has ended>" : "is under way>");
           })
      .def_prop_ro(
          "ready", [](Event const& self) { return self.ready(); }, "Whether the work has ended. Never blocks.")
      .def_prop_ro(
          "duration",
          [](Event const& self) -> std::optional<double> {
            auto const took = duration(self);
            if (!took) return std::nullopt;
            return std::chrono::duration<double>(*took).count();
          },
          nb::sig("def duration(self) -> float | None"),
          "How many seconds the work took on its device, without what it waited for in its queue. None while it runs, "
          "if "
          "it failed, and unless ``Device.keep_durations`` had been called; the 1,024 that ended last are kept. Never "
          "blocks.")
      .def(
          "__await__",
          [](nb::handle self) {
            auto const wait = nb::module_::import_("asyncio").attr("to_thread")(self.attr("wait"));
            return wait.attr("__await__")();
          },
          nb::sig("def __await__(self) -> typing.Generator[typing.Any, None, bool]"),
          "``await event`` leaves the event loop alone until the work has ended.")
      .def(
          "wait",
          [](Event const& self, nb::object const& timeout) {
            auto seconds = std::numeric_limits<double>::infinity();
            if (!timeout.is_none() && (!nb::try_cast(timeout, seconds) || !(seconds >= 0))) {
              throw InvalidArgument("timeout", nb::str(timeout).c_str(), "None, or from 0 seconds on");
            }
            if (!wait_for_end(self, seconds)) return false;
            unlocked([&] { self.wait(); });
            return true;
          },
          nb::arg("timeout") = nb::none(), nb::sig("def wait(self, timeout: float | None = None) -> bool"),
          "Blocks until the work has ended, then raises its error if it failed, and else is true; false if `timeout` "
          "seconds were over before.\n\nCtrl-C ends the waiting, and not the work.");
}

}  // namespace

void bind_devices(nb::module_& m) {
  bind_device(m);
  bind_event(m);
  m.def("_strict_by_default", [] { return environment_flag("UNIMEM_STRICT", false); });
  m.def("format_size", &format_size, nb::arg("bytes"), "``4 KiB``, ``1.50 GiB``: for people.");
  m.def(
      "parse_size", [](std::string const& text) { return parse_size(text); }, nb::arg("text"),
      "A number of bytes: ``4096``, ``64KiB``, ``1.5GiB``, ``12GB``.");
}

}  // namespace unimem::python
