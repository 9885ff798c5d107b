#include <unimem/buffer/map_mode.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "bindings.hpp"
#include "device_array.hpp"
#include "gil.hpp"
#include "host_array.hpp"
#include "lent_buffer.hpp"
#include "numpy_api.hpp"
#include "python_call.hpp"
#include "window.hpp"
#include "write_lease.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// The members of unimem.BufferState, by their numbers in C++.
std::array<PyObject*, 7> state_members{};

nb::object state_of(Window const& window) {
  auto const* const core = window.core();
  if (core == nullptr) return nb::borrow(state_members[0]);
  if (core->options().tracking == Tracking::pages) {
    // Looking at pages takes the buffer's lock.
    auto const share = window.live();
    auto const state = unlocked([&] { return share->state(); });
    return nb::borrow(state_members.at(static_cast<std::size_t>(state)));
  }
  auto const state = core->state();
  return nb::borrow(state_members.at(static_cast<std::size_t>(state)));
}

nb::tuple shape_of(Window const& window) {
  nb::list extents;
  for (auto const extent : window.shape()) extents.append(extent);
  return nb::tuple(extents);
}

/// The host side by the buffer protocol: to be read, or as a lease for a request that says that it writes.
int give_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  try {
    if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) return lend_to_write(self, view, flags);
    auto const host = window_of(self).host();
    auto const plain = nb::steal(PyArray_View(reinterpret_cast<PyArrayObject*>(host.ptr()), nullptr, &PyArray_Type));
    if (!plain.is_valid()) return -1;
    PyArray_CLEARFLAGS(reinterpret_cast<PyArrayObject*>(plain.ptr()), NPY_ARRAY_WRITEABLE);
    return PyObject_GetBuffer(plain.ptr(), view, flags);
  } catch (...) {
    raise_in_python();
  }
  return -1;
}

std::array<PyType_Slot, 3> window_slots{{{Py_bf_getbuffer, reinterpret_cast<void*>(&give_buffer)},
                                         {Py_bf_releasebuffer, reinterpret_cast<void*>(&take_back)},
                                         {0, nullptr}}};

nb::object device_side(Window& window, Device* named) {
  auto const core = window.live();
  auto const range = window.range();
  auto* const device = named != nullptr ? named : unlocked([&] { return &core->default_device(); });
  look_out_on_device(*core, *device, range);
  auto lease = unlocked([&] { return core->lease(*device, nullptr, range, Intent::read, false); });
  if (!device->reaches_host_memory()) {
    return nb::cast(std::make_unique<DeviceArray>(core, std::move(lease), *device, window.shape(), window.dtype()));
  }
  // The same memory: there the device's array is the host's.
  if (!unlocked([&] { return core->is_shared(); })) return window.host_leased(core, std::move(lease));
  // The array stays as that of `.host` does: with no turn, which other processes would wait for.
  unlocked([&] { lease.end(); });
  return window.host();
}

/// `buffer.host += 1` ends with this assignment; everything else would replace nothing.
void assign_host(Window& window, nb::handle value) {
  if (window.host().is(value)) return;
  throw InvalidArgument("host", nb::type_name(value.type()).c_str(), "written as buffer.host[...] = value");
}

nb::object to_numpy(Window& window) {
  auto const core = window.live();
  auto const range = window.range();
  std::vector<npy_intp> extents(window.shape().begin(), window.shape().end());
  Py_INCREF(window.dtype().ptr());  // the call takes it over
  auto* const made =
      PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(window.dtype().ptr()),
                           static_cast<int>(extents.size()), extents.data(), nullptr, nullptr, 0, nullptr);
  if (made == nullptr) nb::raise_python_error();
  auto array = nb::steal(made);
  auto* const data = static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(made)));
  look_out_on_host(*core, range, Intent::read);
  unlocked([&] { core->read(range.begin, {data, range.size()}); });
  return array;
}

/// `array`: of the window's dtype, C-contiguous, in number as many as there are from `offset` on (checked in Python).
void write(Window& window, nb::handle array, std::size_t offset) {
  auto const core = window.live();
  auto* const source = reinterpret_cast<PyArrayObject*>(array.ptr());
  auto const range = window.part(offset, static_cast<std::size_t>(PyArray_SIZE(source)));
  auto const* const data = static_cast<std::byte const*>(PyArray_DATA(source));
  look_out_on_host(*core, range, Intent::write);
  unlocked([&] { core->write(range.begin, {data, range.size()}); });
}

void read(Window& window, nb::handle array, std::size_t offset) {
  auto const core = window.live();
  auto* const target = reinterpret_cast<PyArrayObject*>(array.ptr());
  auto const range = window.part(offset, static_cast<std::size_t>(PyArray_SIZE(target)));
  auto* const data = static_cast<std::byte*>(PyArray_DATA(target));
  look_out_on_host(*core, range, Intent::read);
  unlocked([&] { core->read(range.begin, {data, range.size()}); });
}

void fill(Window& window, nb::bytes const& pattern, std::size_t offset, std::size_t count) {
  auto const core = window.live();
  auto const range = window.part(offset, count);
  auto const* const data = reinterpret_cast<std::byte const*>(pattern.c_str());
  unlocked([&] { core->fill(range, {data, pattern.size()}); });
}

nb::dict statistics_of(Window const& window) {
  auto const core = window.live();
  auto const s = core->statistics();
  nb::dict result;
  result["host_to_device_bytes"] = s.host_to_device_bytes;
  result["host_to_device_copies"] = s.host_to_device_copies;
  result["device_to_host_bytes"] = s.device_to_host_bytes;
  result["device_to_host_copies"] = s.device_to_host_copies;
  result["device_to_device_bytes"] = s.device_to_device_bytes;
  result["device_to_device_copies"] = s.device_to_device_copies;
  result["conflicting_marks"] = s.conflicting_marks;
  result["unmarked_writes"] = s.unmarked_writes;
  result["staged_copies"] = s.staged_copies;
  result["unstaged_copies"] = s.unstaged_copies;
  result["host_to_device_nanoseconds"] = s.host_to_device_nanoseconds;
  result["device_to_host_nanoseconds"] = s.device_to_host_nanoseconds;
  result["device_to_device_nanoseconds"] = s.device_to_device_nanoseconds;
  result["untimed_copies"] = s.untimed_copies;
  return result;
}

/// A plain array over the host side for code whose writes cannot be noticed, and what counts it as written at the end,
/// or is the read until it is gone. The array keeps the memory alone: another process does not wait for it.
nb::tuple map_host(Window& window, int mode) {
  auto const core = window.live();
  auto const range = window.range();
  auto const intent = static_cast<MapMode>(mode) == MapMode::read      ? Intent::read
                      : static_cast<MapMode>(mode) == MapMode::discard ? Intent::write
                                                                       : Intent::read_write;
  look_out_on_host(*core, range, intent);
  auto [mapped, kept] = unlocked([&] {
    auto write = core->map(range, static_cast<MapMode>(mode));
    return std::pair{std::move(write), core->hold_host(range)};
  });
  bool const writes = static_cast<MapMode>(mode) != MapMode::read;
  auto hold = std::make_unique<HostHold>(core, std::move(kept), range);
  auto* const data = hold->begin();
  auto array = make_plain_array(data, window.shape(), window.dtype(), writes, nb::cast(std::move(hold)));
  // In a place of its own: what is given up before it is done writes nothing.
  auto end = writes ? nb::cast(std::make_unique<HostWrite>(core, range, std::move(mapped)))
                    : nb::cast(std::make_unique<HostHold>(core, std::move(mapped), range));
  return nb::make_tuple(array, end);
}

Device& device_or_default(BufferCore const& core, Device* device) {
  return device != nullptr ? *device : core.default_device();
}

/// A call on the core with the interpreter's lock released, once Python's objects have been read.
template <class F>
auto with_core(Window const& window, F&& f) {
  auto const core = window.live();
  return unlocked([&] { return f(*core); });
}

void bind_elements(nb::class_<Window>& window) {
  window
      .def(
          "__init__",
          [](Window* self, Window const& of, std::size_t offset_bytes, std::vector<std::size_t> shape,
             nb::object dtype) {
            new (self) Window(of.live(), offset_bytes, std::move(shape), std::move(dtype), false);
          },
          nb::arg("of"), nb::arg("offset_bytes"), nb::arg("shape"), nb::arg("dtype"))
      .def_prop_ro("state", &state_of, nb::sig("def state(self) -> unimem._enums.BufferState"),
                   "Where the current contents are: a BufferState. One load.")
      .def_prop_ro("shape", &shape_of, nb::sig("def shape(self) -> tuple[int, ...]"), "Extents, outermost first.")
      .def_prop_ro(
          "dtype", [](Window const& self) { return self.dtype(); },
          nb::sig("def dtype(self) -> numpy.dtype[typing.Any]"), "The numpy.dtype of an element.")
      .def_prop_ro("size", &Window::count, "The number of elements.")
      .def_prop_ro("nbytes", &Window::bytes, "All elements, in bytes.")
      .def_prop_ro("itemsize", &Window::item_bytes, "One element, in bytes.")
      .def_prop_ro(
          "ndim", [](Window const& self) { return self.shape().size(); }, "The number of dimensions.")
      .def_prop_ro("_offset_bytes", [](Window const& self) { return self.range().begin; })
      .def_prop_rw("host", &Window::host, &assign_host,
                   nb::for_getter(nb::sig("def host(self) -> unimem._host.HostArray")),
                   nb::for_setter(nb::sig("def host(self, value: object) -> None")),
                   "The elements on the host, current, without a copy: a NumPy array that notices what is written "
                   "through it.\n\n"
                   "Reading marks nothing. See `HostArray` for what is noticed, and what is not.")
      .def("_device", &device_side, nb::arg("device").none(),
           nb::sig("def _device(self, device: Device | None) -> typing.Any"))
      .def("_keep_exported", &Window::keep_exported, nb::arg("array"),
           nb::sig("def _keep_exported(self, array: DeviceArray) -> None"))
      .def("_to_numpy", &to_numpy, nb::sig("def _to_numpy(self) -> numpy.ndarray"))
      .def("_write", &write, nb::arg("array"), nb::arg("offset"))
      .def("_read", &read, nb::arg("array"), nb::arg("offset"))
      .def("_map", &map_host, nb::arg("mode"),
           nb::sig("def _map(self, mode: int) -> tuple[numpy.ndarray, HostWrite | HostHold]"))
      .def("_array_that_may_be_written", &array_that_may_be_written,
           nb::sig("def _array_that_may_be_written(self) -> tuple[numpy.ndarray, WriteLease]"))
      .def("_fill", &fill, nb::arg("pattern"), nb::arg("offset"), nb::arg("count"))
      .def("_mark_host_dirty",
           [](Window& self, std::size_t offset, std::size_t count) {
             auto const range = self.part(offset, count);
             look_out(*self.live(), range);
             with_core(self, [&](BufferCore& core) { core.mark_host_dirty(range); });
           })
      .def(
          "_mark_device_dirty",
          [](Window& self, std::size_t offset, std::size_t count, Device* device) {
            auto const range = self.part(offset, count);
            look_out(*self.live(), range);
            with_core(self, [&](BufferCore& core) { core.mark_device_dirty(device, range, {}); });
          },
          nb::arg("offset"), nb::arg("count"), nb::arg("device").none())
      .def(
          "_sync_to_device",
          [](Window& self, Device* device) {
            auto const core = self.live();
            auto const range = self.range();
            auto* const on = unlocked([&] { return &device_or_default(*core, device); });
            look_out_on_device(*core, *on, range);
            unlocked([&] { core->sync_to_device(*on, range); });
          },
          nb::arg("device").none())
      .def(
          "sync_to_host",
          [](Window& self) {
            auto const core = self.live();
            auto const range = self.range();
            look_out_on_host(*core, range, Intent::read);
            unlocked([&] { core->sync_to_host(range); });
          },
          "Brings the host side up to date. BufferNotAllocated without storage.")
      .def(
          "synchronize",
          [](Window& self) {
            auto const core = self.live();
            auto const range = self.range();
            look_out_on_host(*core, range, Intent::read);
            look_out_on_device(*core, *unlocked([&] { return &core->default_device(); }), range);
            unlocked([&] { core->synchronize(range); });
          },
          "Brings both sides up to date. BufferNotAllocated without storage.")
      .def(
          "_prefetch",
          [](Window& self, Device* device) {
            auto const range = self.range();
            return with_core(
                self, [&](BufferCore& core) { return core.prefetch(device_or_default(core, device), nullptr, range); });
          },
          nb::arg("device").none())
      .def_prop_ro(
          "is_allocated",
          [](Window const& self) {
            return self.core() != nullptr && with_core(self, [](BufferCore& core) { return core.is_allocated(); });
          },
          "Whether there is storage anywhere.")
      .def_prop_ro(
          "is_pinned", [](Window const& self) { return self.core() != nullptr && self.core()->is_pinned(); },
          "Whether the host side is page-locked.")
      .def_prop_ro(
          "valid_on_host",
          [](Window const& self) {
            return self.core() != nullptr && with_core(self, [](BufferCore& core) { return core.valid_on_host(); });
          },
          "Whether the host holds every byte of the buffer.")
      .def(
          "_valid_on",
          [](Window const& self, Device* device) {
            return self.core() != nullptr &&
                   with_core(self, [&](BufferCore& core) { return core.valid_on(device_or_default(core, device)); });
          },
          nb::arg("device").none())
      .def_prop_ro(
          "default_device",
          [](Window const& self) -> Device& {
            auto const core = self.live();
            return *unlocked([&] { return &core->default_device(); });
          },
          nb::rv_policy::reference, "The device meant when none is named.")
      .def_prop_ro(
          "name",
          [](Window const& self) { return self.core() == nullptr ? std::string() : std::string(self.core()->name()); },
          "The buffer's name, in errors and reports.")
      .def_prop_ro("_tracking",
                   [](Window const& self) {
                     return with_core(self, [](BufferCore& core) { return static_cast<int>(core.tracking()); });
                   })
      .def("_options",
           [](Window const& self) {
             auto const core = self.live();
             auto const& o = core->options();
             return nb::make_tuple(static_cast<int>(o.tracking), o.pinned, o.strict, o.priority,
                                   static_cast<int>(o.location), nb::cast(o.device, nb::rv_policy::reference));
           })
      .def(
          "_advise",
          [](Window& self, int advice, Device* device, bool holds) {
            auto const range = self.range();
            with_core(self, [&](BufferCore& core) { core.advise(range, static_cast<Advice>(advice), device, holds); });
          },
          nb::arg("advice"), nb::arg("device").none(), nb::arg("holds"))
      .def("_advice",
           [](Window const& self) {
             auto const all = with_core(self, [](BufferCore& core) { return core.advice(); });
             nb::list result;
             for (auto const& one : all) {
               result.append(nb::make_tuple(static_cast<int>(one.advice), nb::cast(one.place, nb::rv_policy::reference),
                                            one.range.begin, one.range.end));
             }
             return result;
           })
      .def("_statistics", &statistics_of)
      .def("_migrations", [](Window const& self) {
        auto const links = with_core(self, [](BufferCore& core) { return core.links(); });
        nb::list result;
        for (auto const& one : links) result.append(nb::make_tuple(one.from, one.to, one.copies, one.bytes));
        return result;
      });
}

constexpr std::array locations_of_host{Location::host, Location::pinned};

std::size_t spill(Window& window) {
  window.drop_host();
  return with_core(window, [](BufferCore& core) {
    std::size_t given = 0;
    for (auto const location : locations_of_host) given += core.evict({&device("cpu"), location}, {});
    return given;
  });
}

bool may_spill(Window const& window) {
  return with_core(window, [](BufferCore& core) {
    if (core.manager().spill_files() == nullptr || core.is_from_file() || core.is_shared()) return false;
    return std::ranges::all_of(locations_of_host, [&](Location location) {
      return core.evictable({&device("cpu"), location}, {}).leased == 0;
    });
  });
}

/// What only whole buffers have: unimem.UnifiedBuffer gives them public names.
void bind_whole(nb::class_<Window>& window) {
  window
      .def("_allocate", [](Window& self, bool host,
                           bool device) { with_core(self, [&](BufferCore& core) { core.allocate(host, device); }); })
      .def("_free",
           [](Window& self) {
             self.drop_host();
             self.drop_exported();
             with_core(self, [](BufferCore& core) {
               PythonCall::let_go_of(core);
               core.free();
             });
           })
      .def("_reset",
           [](Window& self) {
             self.drop_host();
             self.drop_exported();
             with_core(self, [](BufferCore& core) {
               PythonCall::let_go_of(core);
               core.reset();
             });
           })
      .def("_resize", &Window::resize)
      .def(
          "_release_device",
          [](Window& self, Device* device) {
            self.drop_host();  // on the cpu it holds the device's memory
            wait_for_work(*self.live());
            with_core(self, [&](BufferCore& core) { core.release_device(device); });
          },
          nb::arg("device").none())
      .def(
          "_release_host",
          [](Window& self) {
            self.drop_host();
            wait_for_work(*self.live());
            with_core(self, [](BufferCore& core) { core.release_host(); });
          },
          "Gives the host copy back, after saving to the device what only it holds.\n\n"
          "InvalidArgument while an array over it lives.")
      .def("_spill", &spill,
           "Moves the host memory to a file, or lets go of it where a device has all of it, as an eviction does; the "
           "bytes given back. 0 where it may not go, or is used just now.")
      .def_prop_ro(
          "_number", [](Window const& self) { return self.live()->id(); }, "As in `LiveAllocation.buffer`.")
      .def_prop_ro("_may_spill", &may_spill,
                   "Whether it may go there: of a manager that spills, and of memory that nobody has the address of.")
      .def(
          "_discard", [](Window& self) { with_core(self, [](BufferCore& core) { core.discard(); }); },
          "Forgets the data without saving it; the storage stays.")
      .def(
          "_foretell",
          [](Window& self, Device* device, bool use) {
            with_core(self, [&](BufferCore& core) { core.hint_next_use(device_or_default(core, device), use); });
          },
          nb::arg("device").none(), nb::arg("use"))
      .def_prop_rw(
          "_priority", [](Window const& self) { return self.live()->priority(); },
          [](Window& self, int priority) { self.live()->set_priority(priority); },
          "Of buffers that could give device memory back those of lower priority do first.");
}

}  // namespace

void bind_windows(nb::module_& m) {
  bind_device_arrays(m);
  bind_write_leases(m);
  nb::class_<Window> window(m, "Window", nb::type_slots(window_slots.data()),
                            "Elements of a buffer, with the shape and dtype they are seen with.");
  bind_elements(window);
  bind_whole(window);
  bind_making(window);
  m.def("_set_states", [](nb::sequence const& members) {
    std::size_t i = 0;
    for (nb::handle member : members) {
      Py_INCREF(member.ptr());  // for as long as the process lives
      state_members.at(i++) = member.ptr();
    }
  });
  m.def("_require_initialized", &require_initialized);
  m.def("_copy", [](Window& from, Window& to) {
    auto const source = from.live();
    auto const target = to.live();
    auto const source_range = from.range();
    auto const target_range = to.range();
    auto const item = from.item_bytes();
    // What the host holds is copied by the host.
    bool const by_the_host = unlocked([&] { return source->valid_on_host(); });
    if (by_the_host) look_out_on_host(*target, target_range, Intent::write);
    return unlocked([&] { return copy_bytes({source.get(), source_range}, {target.get(), target_range}, item); });
  });
}

}  // namespace unimem::python
