#include <unimem/buffer/options.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/share/detail/sent_buffers.hpp>
#include <unimem/stream/file_buffer.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "buffer_ids.hpp"
#include "calling_site.hpp"
#include "departures.hpp"
#include "gil.hpp"
#include "manager_records.hpp"
#include "numpy_api.hpp"
#include "tensor_table.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

std::size_t bytes_of(std::vector<std::size_t> const& shape, nb::handle dtype) {
  auto const item = static_cast<std::size_t>(PyDataType_ELSIZE(reinterpret_cast<PyArray_Descr*>(dtype.ptr())));
  return checked_multiply(Shape(shape).count(), item, "shape");
}

/// What the elements are, for files that buffers are saved to. A dtype that NumPy gives the bytes of in another order
/// has the name of the usual one: it is bytes there.
void note_elements(BufferOptions& options, std::vector<std::size_t> const& shape, nb::handle dtype) {
  if (options.name.empty()) return;
  bool const is_native = nb::cast<bool>(dtype.attr("isnative")) && dtype.attr("fields").is_none();
  auto const name = is_native ? nb::cast<std::string>(dtype.attr("name")) : std::string();
  detail::note_elements(options, name, bytes_of({1}, dtype), shape);
}

BufferOptions options_of(MemoryManager* manager, Device* device, int location, int tracking, bool pinned, bool strict,
                         std::string name, int priority, bool shared = false) {
  BufferOptions options;
  options.manager = manager;
  options.device = device;
  options.location = static_cast<Location>(location);
  options.tracking = static_cast<Tracking>(tracking);
  options.pinned = pinned;
  options.shared = shared;
  options.strict = strict;
  options.name = std::move(name);
  if (options.name.empty()) options.site = calling_site();
  options.made_by = calls_of_python(manager == nullptr ? default_manager() : *manager);
  options.priority = priority;
  return options;
}

void make_buffer(Window* self, std::vector<std::size_t> shape, nb::object dtype, MemoryManager* manager, Device* device,
                 int location, int tracking, bool pinned, bool strict, std::string name, int priority, bool shared) {
  auto options = options_of(manager, device, location, tracking, pinned, strict, std::move(name), priority, shared);
  note_elements(options, shape, dtype);
  auto const bytes = bytes_of(shape, dtype);
  auto core = unlocked([&] { return BufferCore::make(bytes, std::move(options)); });
  new (self) Window(std::move(core), 0, std::move(shape), std::move(dtype), true);
}

/// What another process has sent.
void receive_buffer(Window* self, std::string const& sent, std::vector<std::size_t> shape, nb::object dtype,
                    Device* device, int location, int tracking, bool strict, std::string name, int priority) {
  auto options = options_of(nullptr, device, location, tracking, false, strict, std::move(name), priority);
  note_elements(options, shape, dtype);
  auto const bytes = bytes_of(shape, dtype);
  auto const id = checked_id(sent);
  auto core = unlocked([&] { return detail::receive_sent(id, bytes, std::move(options)); });
  new (self) Window(std::move(core), 0, std::move(shape), std::move(dtype), true);
}

/// With the options, the shape and the dtype of another, and none of its data.
void make_like(Window* self, Window const& other) {
  auto const core = other.live();
  auto options = core->options();
  options.made_by = calls_of_python(core->manager());
  auto made = unlocked([&] { return BufferCore::make(other.bytes(), std::move(options)); });
  new (self) Window(std::move(made), 0, other.shape(), other.dtype(), true);
}

/// Over the memory of an array, which is C-contiguous and writable (checked in Python) and stays until the last use of
/// it.
void wrap_array(Window* self, nb::object array, MemoryManager* manager, Device* device, int location, int tracking,
                bool strict, std::string name, int priority) {
  auto* const source = reinterpret_cast<PyArrayObject*>(array.ptr());
  std::vector<std::size_t> shape;
  shape.reserve(static_cast<std::size_t>(PyArray_NDIM(source)));
  for (int i = 0; i < PyArray_NDIM(source); ++i) shape.push_back(static_cast<std::size_t>(PyArray_DIM(source, i)));
  auto* const data = PyArray_DATA(source);
  auto const bytes = static_cast<std::size_t>(PyArray_NBYTES(source));
  auto options = options_of(manager, device, location, tracking, false, strict, std::move(name), priority);
  nb::object dtype = nb::borrow(reinterpret_cast<PyObject*>(PyArray_DESCR(source)));
  note_elements(options, shape, dtype);
  if (bytes == 0) {  // no memory to wrap, and nothing that would ever let go of the array
    auto empty = unlocked([&] { return BufferCore::make(0, std::move(options)); });
    new (self) Window(std::move(empty), 0, std::move(shape), std::move(dtype), true);
    return;
  }
  auto* const kept = array.ptr();
  BufferCore::Wrapped wrapped{data, Ownership::take([kept](void*) { depart(kept); }), Location::host};
  auto core = unlocked([&] { return BufferCore::make(bytes, std::move(options), std::move(wrapped)); });
  static_cast<void>(array.release());  // the buffer's now, which lets go of it
  new (self) Window(std::move(core), 0, std::move(shape), std::move(dtype), true);
}

/// As `MemoryManager::allocate` does, which knows elements by their C++ types. `location`: less than 0 where the
/// placement decides.
void allocate_buffer(Window* self, std::vector<std::size_t> shape, nb::object dtype, MemoryManager& manager,
                     Device* device, int location, int placement, int access, std::string name) {
  AllocationOptions asked;
  if (location >= 0) asked.location = static_cast<Location>(location);
  asked.placement = static_cast<Placement>(placement);
  asked.access = static_cast<AccessPattern>(access);
  asked.device = device;
  asked.name = std::move(name);
  auto const bytes = bytes_of(shape, dtype);
  auto const site = asked.name.empty() ? calling_site() : Name{};
  BufferOptions told;
  told.name = asked.name;
  note_elements(told, shape, dtype);
  auto made_by = calls_of_python(manager);
  auto core = unlocked([&] {
    auto options = detail::buffer_options(manager, asked, bytes, site);
    options.made_by = std::move(made_by);
    options.elements = std::move(told.elements);
    auto made = BufferCore::make(bytes, std::move(options));
    detail::move_in(*made);
    return made;
  });
  new (self) Window(std::move(core), 0, std::move(shape), std::move(dtype), true);
}

/// `shape`: none for all that the file has, in one dimension.
void make_from_file(Window* self, std::string const& path, std::optional<std::vector<std::size_t>> shape,
                    nb::object dtype, std::uint64_t offset, int mode, int access, MemoryManager* manager,
                    Device* device, std::string name) {
  FileOptions options;
  options.mode = static_cast<FileMode>(mode);
  options.access = static_cast<FileAccess>(access);
  options.offset = offset;
  options.manager = manager;
  options.device = device;
  options.name = std::move(name);
  if (shape) options.count = Shape(*shape).count();
  auto const item = bytes_of({1}, dtype);
  BufferOptions told;
  told.name = options.name;
  note_elements(told, {}, dtype);
  auto const element = told.elements ? told.elements->dtype : std::string();
  auto const alignment = nb::cast<std::size_t>(dtype.attr("alignment"));
  auto core = unlocked([&] { return detail::buffer_core_from_file(path, item, alignment, options, element); });
  if (!shape) shape = std::vector{core->size_bytes() / item};
  new (self) Window(std::move(core), 0, *std::move(shape), std::move(dtype), true);
}

/// Of the table's array with that number. The caller has seen to it that `dtype` is the array's.
void make_from_tensor(Window* self, TensorTable const& table, std::size_t number, nb::object dtype, int mode,
                      MemoryManager* manager, Device* device) {
  auto const& tensor = table.tensors.at(number);
  FileOptions options;
  options.mode = static_cast<FileMode>(mode);
  options.manager = manager;
  options.device = device;
  detail::TensorElement const element{detail::TensorElement::Kind::bytes, bytes_of({1}, dtype)};
  auto core = unlocked([&] { return detail::buffer_core_from_tensor(tensor, element, options); });
  new (self) Window(std::move(core), 0, std::vector<std::size_t>(tensor.shape.begin(), tensor.shape.end()),
                    std::move(dtype), true);
}

nb::object placement_of(Window const& window) {
  auto const core = window.live();
  auto const& decision = core->options().decision;
  return decision ? record_of(*decision) : nb::none();
}

}  // namespace

void bind_making(nb::class_<Window>& window) {
  window
      .def("__init__", &make_buffer, nb::arg("shape"), nb::arg("dtype"), nb::arg("manager").none(),
           nb::arg("device").none(), nb::arg("location"), nb::arg("tracking"), nb::arg("pinned"), nb::arg("strict"),
           nb::arg("name"), nb::arg("priority"), nb::arg("shared") = false)
      .def("__init__", &receive_buffer, nb::arg("sent"), nb::arg("shape"), nb::arg("dtype"), nb::arg("device").none(),
           nb::arg("location"), nb::arg("tracking"), nb::arg("strict"), nb::arg("name"), nb::arg("priority"))
      .def("__init__", &make_like, nb::arg("like"))
      .def("__init__", &wrap_array, nb::arg("array"), nb::arg("manager").none(), nb::arg("device").none(),
           nb::arg("location"), nb::arg("tracking"), nb::arg("strict"), nb::arg("name"), nb::arg("priority"))
      .def("__init__", &allocate_buffer, nb::arg("shape"), nb::arg("dtype"), nb::arg("manager"),
           nb::arg("device").none(), nb::arg("location"), nb::arg("placement"), nb::arg("access"), nb::arg("name"))
      .def("__init__", &make_from_file, nb::arg("path"), nb::arg("shape").none(), nb::arg("dtype"), nb::arg("offset"),
           nb::arg("mode"), nb::arg("access"), nb::arg("manager").none(), nb::arg("device").none(), nb::arg("name"))
      .def("__init__", &make_from_tensor, nb::arg("table"), nb::arg("number"), nb::arg("dtype"), nb::arg("mode"),
           nb::arg("manager").none(), nb::arg("device").none())
      .def_prop_ro("_is_shared",
                   [](Window const& self) {
                     auto const core = self.live();
                     return unlocked([&] { return core->is_shared(); });
                   })
      .def("_flush", [](Window const& self) { unlocked([core = self.live()] { core->flush(); }); })
      .def_prop_ro("_is_from_file", [](Window const& self) { return self.live()->is_from_file(); })
      .def_prop_ro(
          "_location",
          [](Window const& self) {
            auto const core = self.live();
            return Conversion<Location>::to(unlocked([&] { return core->location(); }));
          },
          nb::sig("def _location(self) -> unimem._enums.Location"))
      .def_prop_ro("_placement", &placement_of,
                   nb::sig("def _placement(self) -> unimem._manager_records.PlacementDecision | None"));
}

}  // namespace unimem::python
