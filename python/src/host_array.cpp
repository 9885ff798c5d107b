#define UNIMEM_IMPORTS_NUMPY
#include "host_array.hpp"

#include <unimem/buffer/map_mode.hpp>
#include <unimem/buffer/options.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <utility>

#include "bindings.hpp"
#include "gil.hpp"
#include "lent_buffer.hpp"
#include "numpy_api.hpp"
#include "written_parts.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// unimem.HostArray, and the name of the slot in which an array keeps its hold.
PyTypeObject* host_array_type = nullptr;
PyObject* hold_slot = nullptr;

PyArrayObject* as_array(nb::handle object) {
  if (!PyArray_Check(object.ptr())) throw nb::type_error("a NumPy array is needed");
  return reinterpret_cast<PyArrayObject*>(object.ptr());
}

nb::object new_array(PyTypeObject* type, void* data, std::vector<std::size_t> const& shape, nb::handle dtype,
                     int flags) {
  std::vector<npy_intp> extents(shape.begin(), shape.end());
  Py_INCREF(dtype.ptr());  // the call takes it over
  auto* const array =
      PyArray_NewFromDescr(type, reinterpret_cast<PyArray_Descr*>(dtype.ptr()), static_cast<int>(extents.size()),
                           extents.data(), nullptr, data, data == nullptr ? 0 : flags, nullptr);
  if (array == nullptr) nb::raise_python_error();
  return nb::steal(array);
}

void set_base(nb::handle array, nb::handle owner) {
  Py_INCREF(owner.ptr());  // the call takes it over
  if (PyArray_SetBaseObject(as_array(array), owner.ptr()) != 0) nb::raise_python_error();
}

}  // namespace

HostWrite::~HostWrite() {
  if (!core_) return;
  Unlocked const released;
  core_->nothing_written_through_map();
  hold_.end();
  core_.reset();
}

void HostWrite::done() {
  if (!core_) return;
  Unlocked const released;
  auto const core = std::exchange(core_, nullptr);
  auto const hold = std::exchange(hold_, {});
  core->written_through_map(range_, hold, std::move(parts_));
}

void HostWrite::done_quietly() noexcept {
  if (!core_) return;
  Unlocked const released;
  auto const core = std::exchange(core_, nullptr);
  auto const hold = std::exchange(hold_, {});
  try {
    core->written_through_map(range_, hold, std::move(parts_));
  } catch (...) {
    core->fail_later(std::current_exception());
  }
}

HostHold::HostHold(std::shared_ptr<BufferCore> core, DeviceLease lease, ByteRange window)
    : core_(std::move(core)),
      lease_(std::move(lease)),
      window_(window),
      begin_(static_cast<std::byte*>(lease_.address())) {}

HostHold::~HostHold() {
  // Giving memory back may wait for work, and that work may be waiting for the interpreter.
  Unlocked const released;
  lease_.end();
  core_.reset();
}

std::optional<ByteRange> HostHold::bytes_of(nb::handle object) const {
  auto* const array = as_array(object);
  if (begin_ == nullptr || PyArray_SIZE(array) == 0) return std::nullopt;
  auto const* const data = static_cast<std::byte const*>(PyArray_DATA(array));
  // Compared as numbers: addresses of other memory have no order among pointers.
  auto const from = reinterpret_cast<std::uintptr_t>(begin_);
  auto const at = reinterpret_cast<std::uintptr_t>(data);
  if (at < from || at - from >= window_.size()) return std::nullopt;
  auto lower = static_cast<std::ptrdiff_t>(at - from);
  auto upper = lower + static_cast<std::ptrdiff_t>(PyArray_ITEMSIZE(array));
  for (int i = 0; i < PyArray_NDIM(array); ++i) {
    auto const reach = (PyArray_DIM(array, i) - 1) * PyArray_STRIDE(array, i);
    (reach < 0 ? lower : upper) += reach;
  }
  if (lower < 0 || static_cast<std::size_t>(upper) > window_.size()) return std::nullopt;
  return ByteRange{window_.begin + static_cast<std::size_t>(lower), window_.begin + static_cast<std::size_t>(upper)};
}

bool HostHold::covers(nb::handle array) const {
  return bytes_of(array).has_value();
}

std::optional<HostWrite> HostHold::before_write(nb::handle array, int axis, nb::handle chosen) {
  auto const range = bytes_of(array);
  if (!range || !PyArray_ISWRITEABLE(as_array(array))) return std::nullopt;
  ByteRanges parts;
  if (!PyArray_IS_C_CONTIGUOUS(as_array(array)) || !chosen.is_none()) {
    for (auto const part : written_parts(array, axis, chosen).ranges()) {
      parts.add({range->begin + part.begin, range->begin + part.end});
    }
  }
  auto const* const first = begin_ + (range->begin - window_.begin);
  look_out_on_host(*core_, *range, Intent::read_write);
  return unlocked([&]() -> std::optional<HostWrite> {
    if (!core_->is_allocated()) return std::nullopt;  // freed, reset or given back: this memory has no owner now
    if (core_->tracking() != Tracking::access) {
      static_cast<void>(core_->host(*range, Intent::read_write));
      return std::nullopt;
    }
    auto hold = core_->map(*range, MapMode::write);
    if (hold.address() != first) {  // freed, and allocated anew elsewhere
      core_->nothing_written_through_map();
      return std::nullopt;
    }
    return HostWrite(core_, *range, std::move(hold), std::move(parts));
  });
}

nb::object make_host_array(std::unique_ptr<HostHold> hold, std::vector<std::size_t> const& shape, nb::handle dtype) {
  void* const data = hold->begin();
  nb::object const holder = nb::cast(std::move(hold));
  nb::object array = new_array(host_array_type, data, shape, dtype, NPY_ARRAY_CARRAY);
  // Without elements there is no address either, and NumPy has allocated its own.
  if (data == nullptr) return array;
  if (PyObject_SetAttr(array.ptr(), hold_slot, holder.ptr()) != 0) nb::raise_python_error();
  set_base(array, holder);
  return array;
}

nb::object make_plain_array(void* data, std::vector<std::size_t> const& shape, nb::handle dtype, bool writable,
                            nb::handle owner) {
  nb::object array = new_array(&PyArray_Type, data, shape, dtype, writable ? NPY_ARRAY_CARRAY : NPY_ARRAY_CARRAY_RO);
  if (data != nullptr && !owner.is_none()) set_base(array, owner);
  return array;
}

HostHold* hold_of(nb::handle array) {
  if (!PyObject_TypeCheck(array.ptr(), host_array_type)) return nullptr;
  auto const holder = nb::steal(PyObject_GetAttr(array.ptr(), hold_slot));
  if (!holder.is_valid()) nb::raise_python_error();
  if (holder.is_none()) return nullptr;
  auto& hold = nb::cast<HostHold&>(holder);
  return hold.covers(array) ? &hold : nullptr;  // the array keeps it
}

nb::object make_plain_array_over(nb::handle array, nb::handle owner) {
  auto* const given = as_array(array);
  auto* const descr = PyArray_DESCR(given);
  Py_INCREF(descr);  // the call takes it over
  auto* const made = PyArray_NewFromDescr(&PyArray_Type, descr, PyArray_NDIM(given), PyArray_DIMS(given),
                                          PyArray_STRIDES(given), PyArray_DATA(given), NPY_ARRAY_WRITEABLE, nullptr);
  if (made == nullptr) nb::raise_python_error();
  auto plain = nb::steal(made);
  if (!owner.is_none()) set_base(plain, owner);
  return plain;
}

void keep_memory(nb::handle array, std::shared_ptr<BufferCore> core, DeviceLease lease, ByteRange window) {
  if (lease.memory().bytes == 0) return;
  set_base(array, nb::cast(std::make_unique<HostHold>(std::move(core), std::move(lease), window)));
}

void bind_host_arrays(nb::module_& m) {
  if (PyArray_ImportNumPyAPI() < 0) nb::raise_python_error();
  hold_slot = PyUnicode_InternFromString("_hold");

  nb::class_<HostWrite>(m, "HostWrite", "A write to host memory, from before it happens until `done`.")
      .def("done", &HostWrite::done, "Counts it as written.")
      .def("done_quietly", &HostWrite::done_quietly,
           "The same; what it would raise, the next access to the buffer does.");

  nb::class_<HostHold>(m, "HostHold", "Keeps a buffer's host memory for arrays, and is told when they are written.")
      .def("covers", &HostHold::covers, nb::arg("array"), "Whether the array's elements lie in this memory.")
      .def_prop_ro("has_to_be_told", &HostHold::has_to_be_told, "Whether writes count only where they are said.")
      .def("before_write", &HostHold::before_write, nb::arg("array"), nb::arg("axis") = 0,
           nb::arg("chosen") = nb::none(),
           "Brings what the array spans up to date; the write to be reported when it is done, or None. "
           "`chosen`: ascending indexes along `axis`, the only ones that are written.");

  m.def(
      "_set_host_array",
      [](nb::handle type) {
        Py_INCREF(type.ptr());  // for as long as the process lives
        host_array_type = reinterpret_cast<PyTypeObject*>(type.ptr());
        lend_arrays_to_write(host_array_type);
      },
      nb::arg("type"));
}

}  // namespace unimem::python
