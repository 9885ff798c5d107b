#include "device_array.hpp"

#include <unimem/core/error.hpp>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <charconv>
#include <string>
#include <utility>

#include "casters.hpp"
#include "gil.hpp"
#include "numpy_api.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// The number behind the colon of a device's id.
int number_of(Device const& device) {
  auto const id = device.id();
  auto const colon = id.find(':');
  int number = 0;
  if (colon != std::string_view::npos) std::from_chars(id.data() + colon + 1, id.data() + id.size(), number);
  return number;
}

nb::dlpack::dtype dlpack_dtype(nb::handle dtype) {
  auto const kind = std::string(nb::str(dtype.attr("kind")).c_str());
  auto const bytes = nb::cast<unsigned>(dtype.attr("itemsize"));
  auto const bits = static_cast<std::uint8_t>(bytes * 8);
  bool const native = nb::cast<bool>(dtype.attr("isnative"));
  using Code = nb::dlpack::dtype_code;
  auto const as = [&](Code code) { return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1}; };
  if (native) {
    if (kind == "i") return as(Code::Int);
    if (kind == "u") return as(Code::UInt);
    // Larger ones are the machine's own, with padding.
    if (kind == "f" && bytes <= 8) return as(Code::Float);
    if (kind == "c" && bytes <= 16) return as(Code::Complex);
    if (kind == "b") return as(Code::Bool);
  }
  throw UnsupportedOperation("handing over elements of dtype " + std::string(nb::str(dtype).c_str()), "DLPack",
                             "it knows native booleans, integers, floating point and complex numbers of IEEE 754");
}

/// DLPack's rules for the consumer's stream. What the lease waited for is there, so that there is nothing to make it
/// wait for.
void check_stream(nb::handle stream, Device const& device) {
  if (stream.is_none()) return;
  std::string const said = nb::str(stream).c_str();
  if (device.backend() != Backend::cuda) {
    throw InvalidArgument("stream", said, "None: " + std::string(device.id()) + " has no streams in DLPack");
  }
  long long number = 0;
  if (!PyLong_Check(stream.ptr()) || !nb::try_cast(stream, number) || number == 0 || number < -1) {
    throw InvalidArgument("stream", said, "None, -1, 1, 2 or the address of a stream: 0 could mean two of them");
  }
}

/// The copy is the consumer's alone, which versioned capsules say.
nb::object capsule_of_copy(nb::handle copy, nb::dict const& others) {
  nb::object capsule = copy.attr("__dlpack__")(**others);
  // As DLPack lays it out, from version 1 on.
  struct Head {
    std::uint32_t major, minor;
    void* context;
    void (*deleter)(void*);
    std::uint64_t flags;
  };
  constexpr auto name = "dltensor_versioned";
  constexpr std::uint64_t is_copied = 2;
  if (PyCapsule_IsValid(capsule.ptr(), name) != 0) {
    static_cast<Head*>(PyCapsule_GetPointer(capsule.ptr(), name))->flags |= is_copied;
  }
  return capsule;
}

/// A copy where one is asked for, or where another device's memory is wanted on the host; else the memory itself.
nb::object dlpack_capsule(nb::handle self, nb::kwargs arguments) {
  auto const& array = nb::cast<DeviceArray const&>(self);
  auto const given = [&](char const* name) -> nb::object {
    return arguments.contains(name) ? nb::object(arguments[name]) : nb::none();
  };
  check_stream(given("stream"), array.device());
  auto const copy = given("copy");
  if (!copy.is_none() && !nb::isinstance<nb::bool_>(copy)) {
    throw InvalidArgument("copy", nb::repr(copy).c_str(), "True, False or None");
  }
  auto const wanted = given("dl_device");
  std::pair<int, int> there;
  if (!wanted.is_none() && !nb::try_cast(wanted, there)) {
    throw InvalidArgument("dl_device", nb::repr(wanted).c_str(), "None, or DLPack's numbers of a kind and a device");
  }
  auto const here = array.dlpack_device();
  bool const to_host = !wanted.is_none() && there.first == nb::device::cpu::value && here.first != there.first;
  if (copy.is(nb::bool_(true)) || (to_host && copy.is_none())) {
    nb::dict others;
    if (arguments.contains("max_version")) others["max_version"] = arguments["max_version"];
    return capsule_of_copy(array.to_numpy(), others);
  }
  return array.exported(self).attr("__dlpack__")(**arguments);
}

}  // namespace

DeviceArray::DeviceArray(std::shared_ptr<BufferCore> core, DeviceLease lease, Device& device,
                         std::vector<std::size_t> shape, nb::object dtype)
    : core_(std::move(core)),
      lease_(std::move(lease)),
      device_(device),
      shape_(std::move(shape)),
      dtype_(std::move(dtype)) {}

DeviceArray::~DeviceArray() {
  Unlocked const released;
  lease_.end();
  core_.reset();
}

nb::object DeviceArray::to_numpy() const {
  std::vector<npy_intp> extents(shape_.begin(), shape_.end());
  Py_INCREF(dtype_.ptr());  // the call takes it over
  auto* const made =
      PyArray_NewFromDescr(&PyArray_Type, reinterpret_cast<PyArray_Descr*>(dtype_.ptr()),
                           static_cast<int>(extents.size()), extents.data(), nullptr, nullptr, 0, nullptr);
  if (made == nullptr) nb::raise_python_error();
  auto array = nb::steal(made);
  auto* const data = PyArray_DATA(reinterpret_cast<PyArrayObject*>(made));
  auto const from = memory();
  wait_for_end(unlocked([&] { return device_.default_queue().record(); }));
  if (from.bytes != 0) unlocked([&] { device_.default_queue().download(data, from, from.bytes).wait(); });
  return array;
}

void DeviceArray::upload(nb::handle given) {
  nb::list extents;
  std::size_t count = 1;
  for (auto const extent : shape_) {
    extents.append(extent);
    count *= extent;
  }
  nb::object const array =
      nb::module_::import_("unimem._arguments").attr("elements_of")(given, dtype_, "data", nb::tuple(extents), count);
  auto const* const data = PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()));
  auto const to = memory();
  wait_for_end(unlocked([&] { return device_.default_queue().record(); }));
  if (to.bytes != 0) unlocked([&] { device_.default_queue().upload(to, data, to.bytes).wait(); });
}

std::pair<int, int> DeviceArray::dlpack_device() const {
  switch (device_.backend()) {
    case Backend::cuda:
      return {nb::device::cuda::value, number_of(device_)};
    case Backend::opencl:
      return {nb::device::opencl::value, number_of(device_)};
    case Backend::metal:
      return {nb::device::metal::value, number_of(device_)};
    // A simulated device's memory is the host's, as all code but the library sees it.
    case Backend::cpu:
    case Backend::sim:
      break;
  }
  return {nb::device::cpu::value, 0};
}

nb::object DeviceArray::exported(nb::handle self) const {
  auto const [kind, number] = dlpack_device();
  auto* data = address();
  std::uint64_t offset = 0;
  if (data == nullptr) {
    data = reinterpret_cast<void*>(memory().object);
    offset = memory().offset;
  }
  nb::ndarray<nb::array_api> const array(data, shape_.size(), shape_.data(), self, nullptr, dlpack_dtype(dtype_), kind,
                                         number, 'C', offset);
  return nb::cast(array);
}

nb::dict DeviceArray::cuda_interface() const {
  if (device_.backend() != Backend::cuda) {
    throw nb::attribute_error(("__cuda_array_interface__: the array is on " + std::string(device_.id())).c_str());
  }
  nb::dict result;
  nb::list extents;
  for (auto const extent : shape_) extents.append(extent);
  result["shape"] = nb::tuple(extents);
  result["typestr"] = dtype_.attr("str");
  result["data"] = nb::make_tuple(reinterpret_cast<std::uintptr_t>(address()), false);
  result["strides"] = nb::none();
  // The data was there before the array was handed out: nothing to wait for.
  result["stream"] = nb::none();
  result["version"] = 3;
  return result;
}

void bind_device_arrays(nb::module_& m) {
  nb::class_<DeviceArray>(m, "DeviceArray", nb::is_final(),
                          "A buffer's memory on a device, held where it is for as long as the array lives.\n\n"
                          "What is written through it is declared with ``mark_device_dirty()``.")
      .def("__repr__",
           [](nb::handle self) {
             auto const& array = nb::cast<DeviceArray const&>(self);
             return "<unimem.DeviceArray on '" + std::string(array.device().id()) +
                    "': shape=" + nb::repr(self.attr("shape")).c_str() + ", dtype=" + nb::str(array.dtype()).c_str() +
                    ">";
           })
      .def_prop_ro("device", &DeviceArray::device, nb::rv_policy::reference, "Whose memory it is.")
      .def_prop_ro(
          "shape",
          [](DeviceArray const& self) {
            nb::list extents;
            for (auto const extent : self.shape()) extents.append(extent);
            return nb::tuple(extents);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Extents, outermost first.")
      .def_prop_ro("dtype", &DeviceArray::dtype, nb::sig("def dtype(self) -> numpy.dtype[typing.Any]"),
                   "The numpy.dtype of an element.")
      .def_prop_ro(
          "nbytes", [](DeviceArray const& self) { return self.memory().bytes; }, "All elements, in bytes.")
      .def_prop_ro(
          "address", [](DeviceArray const& self) { return reinterpret_cast<std::uintptr_t>(self.address()); },
          "The address for code on the device; 0 where device memory has none (OpenCL).")
      .def_prop_ro(
          "native", [](DeviceArray const& self) { return nb::make_tuple(self.memory().object, self.memory().offset); },
          "The memory as the driver knows it: an address or cl_mem, and an offset in bytes.")
      .def("to_numpy", &DeviceArray::to_numpy, nb::sig("def to_numpy(self) -> numpy.ndarray"),
           "What is in the device's memory now, as an array of its own.")
      .def("copy_from", &DeviceArray::upload, nb::arg("data"),
           nb::sig("def copy_from(self, data: numpy.typing.ArrayLike) -> None"),
           "Overwrites the device's memory with an array of this shape, cast by NumPy's 'same_kind'.")
      .def(
          "__array__",
          [](DeviceArray const& self, nb::args const& /*unused*/, nb::kwargs const& /*unused*/) {
            throw UnsupportedOperation("numpy.asarray of a DeviceArray", std::string(self.device().id()),
                                       "the elements are in the device's memory: copy them with .to_numpy(), or ask "
                                       "the buffer for .host");
          },
          nb::sig("def __array__(self, *args: object, **kwargs: object) -> numpy.ndarray"),
          "UnsupportedOperation: NumPy would look at the device's memory as if it were the host's.")
      .def("__dlpack_device__", &DeviceArray::dlpack_device)
      .def("__dlpack__", &dlpack_capsule)
      .def_prop_ro("__cuda_array_interface__", &DeviceArray::cuda_interface);
}

}  // namespace unimem::python
