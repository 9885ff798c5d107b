#include "window.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <complex>
#include <string>
#include <typeinfo>
#include <utility>

#include "gil.hpp"
#include "host_array.hpp"
#include "numpy_api.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

std::size_t item_bytes_of(nb::handle dtype) {
  return static_cast<std::size_t>(PyDataType_ELSIZE(reinterpret_cast<PyArray_Descr*>(dtype.ptr())));
}

/// What an element's name begins with that is no type of C++.
constexpr std::string_view numpy_prefix = "numpy ";

template <class T>
detail::SharedElement known() {
  return detail::shared_element<T>();
}

/// Whether an array is what was made of the window's memory: its user may have set another shape, dtype or
/// strides, made it read-only, or had it take other memory.
bool is_untouched(nb::handle host, std::byte* begin, std::vector<std::size_t> const& shape, nb::handle dtype) {
  auto* const array = reinterpret_cast<PyArrayObject*>(host.ptr());
  bool const here = begin == nullptr || PyArray_DATA(array) == begin;  // without elements the memory is NumPy's own
  bool const same_elements = reinterpret_cast<PyObject*>(PyArray_DESCR(array)) == dtype.ptr() &&
                             PyArray_NDIM(array) == static_cast<int>(shape.size());
  if (!here || !same_elements || !PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE)) return false;
  return std::equal(shape.begin(), shape.end(), PyArray_DIMS(array),
                    [](std::size_t a, npy_intp b) { return a == static_cast<std::size_t>(b); });
}

/// Whether its host memory may go to a file, once no array shows it: then nothing of this library's keeps one, and no
/// address is given away but under an array's lease.
bool may_be_spilled(BufferCore const& core) {
  return core.manager().spill_files() != nullptr && !core.is_from_file();
}

}  // namespace

Window::Window(std::shared_ptr<BufferCore> core, std::size_t offset, std::vector<std::size_t> shape, nb::object dtype,
               bool whole)
    : core_(std::move(core)),
      offset_(offset),
      shape_(std::move(shape)),
      count_(Shape(shape_).count()),
      item_bytes_(item_bytes_of(dtype)),
      whole_(whole),
      dtype_(std::move(dtype)) {}

ValueType Window::value_type() const noexcept {
  using Number = ValueType::Number;
  switch (reinterpret_cast<PyArray_Descr*>(dtype_.ptr())->kind) {
    case 'b':
      return {Number::unsigned_integer, item_bytes_};
    case 'u':
      return item_bytes_ == 1 ? ValueType{} : ValueType{Number::unsigned_integer, item_bytes_};
    case 'i':
      return {Number::signed_integer, item_bytes_};
    case 'f':
      return {Number::floating, item_bytes_};
    case 'c':
      return {Number::floating, item_bytes_ / 2, 2};
    default:
      return {Number::none, item_bytes_};
  }
}

Window::~Window() {
  host_.reset();
  if (!core_) return;
  // The last share in a core may wait for work that needs the interpreter.
  Unlocked const released;
  core_.reset();
}

std::shared_ptr<BufferCore> Window::live() const {
  if (!core_) throw InvalidArgument("buffer", "released to its pool", "one that was acquired and not released since");
  if (auto const end = offset_ + bytes(); end > core_->size_bytes()) {
    throw InvalidArgument("buffer", "bytes up to " + std::to_string(end),
                          "within the buffer, which was resized to " + std::to_string(core_->size_bytes()) + " bytes");
  }
  return core_;
}

ByteRange Window::part(std::size_t offset, std::size_t count) const {
  auto const inner = detail::checked_range(offset, count, count_, item_bytes_);
  return {offset_ + inner.begin, offset_ + inner.end};
}

nb::object Window::host() {
  auto const core = live();
  auto const whole = range();
  look_out_on_host(*core, whole, Intent::read);
  if (core->is_from_file()) {
    // By a lease alone, so that parts make room for others once no array is over them.
    auto lease = unlocked([&] { return core->hold_host(whole); });
    if (!core->is_read_only()) return host_leased(core, std::move(lease));
    auto hold = std::make_unique<HostHold>(core, std::move(lease), whole);
    auto* const data = hold->begin();
    return make_plain_array(data, shape_, dtype_, false, nb::cast(std::move(hold)));
  }
  if (may_be_spilled(*core)) return host_leased(core, unlocked([&] { return core->hold_host(whole); }));
  auto* const begin = unlocked([&] {
    auto* const address = static_cast<std::byte*>(core->host(whole, Intent::read, false));
    return address == nullptr ? nullptr : address + whole.begin;
  });
  // The array's hold keeps its memory from getting another owner, so the same address is the same memory.
  if (host_.is_valid() && begin == host_begin_ && is_untouched(host_, begin, shape_, dtype_)) return host_;
  return host_leased(core, unlocked([&] { return core->hold_host(whole); }));
}

nb::object Window::host_leased(std::shared_ptr<BufferCore> core, DeviceLease lease) {
  bool const goes_with_its_user = !whole_ || may_be_spilled(*core);
  auto hold = std::make_unique<HostHold>(std::move(core), std::move(lease), range());
  auto* const held = hold->begin();
  if (host_.is_valid() && held == host_begin_ && is_untouched(host_, held, shape_, dtype_)) return host_;
  auto array = make_host_array(std::move(hold), shape_, dtype_);
  if (goes_with_its_user) return array;
  drop_host();
  host_ = array;
  host_begin_ = held;
  return array;
}

void Window::resize(std::size_t count) {
  auto const core = live();
  auto const bytes = checked_multiply(count, item_bytes_, "count");
  drop_host();
  wait_for_work(*core);
  unlocked([&] { core->resize(bytes); });
  shape_ = {count};
  count_ = count;
}

void require_initialized(nb::handle object) {
  if (!nb::inst_check(object) || nb::inst_ready(object) || !nb::isinstance<Window>(object)) return;
  throw InvalidArgument("buffer", nb::cast<std::string>(nb::inst_name(object)),
                        "initialized: an __init__ of its own calls super().__init__(…)");
}

detail::SharedElement element_of(nb::handle dtype) {
  auto* const descr = reinterpret_cast<PyArray_Descr*>(dtype.ptr());
  if (PyArray_ISNBO(descr->byteorder)) {
    switch (descr->type_num) {
      case NPY_BOOL:
        return known<bool>();
      case NPY_BYTE:
        return known<std::int8_t>();
      case NPY_UBYTE:
        return known<std::uint8_t>();
      case NPY_SHORT:
        return known<std::int16_t>();
      case NPY_USHORT:
        return known<std::uint16_t>();
      case NPY_INT:
        return known<std::int32_t>();
      case NPY_UINT:
        return known<std::uint32_t>();
      case NPY_LONG:
      case NPY_LONGLONG:
        return known<std::int64_t>();
      case NPY_ULONG:
      case NPY_ULONGLONG:
        return known<std::uint64_t>();
      case NPY_FLOAT:
        return known<float>();
      case NPY_DOUBLE:
        return known<double>();
      case NPY_CFLOAT:
        return known<std::complex<float>>();
      case NPY_CDOUBLE:
        return known<std::complex<double>>();
      default:
        break;
    }
  }
  nb::object const text = dtype.attr("descr");
  auto const name = std::string(numpy_prefix) + nb::str(text).c_str();
  return {Name(name), item_bytes_of(dtype), ElementTag::other};
}

nb::object dtype_of(detail::SharedElement const& element) {
  auto const numpy = nb::module_::import_("numpy");
  struct Known {
    detail::SharedElement element;
    char const* dtype = nullptr;
  };
  static Known const all[] = {{known<bool>(), "?"},
                              {known<std::int8_t>(), "i1"},
                              {known<std::uint8_t>(), "u1"},
                              {known<std::byte>(), "u1"},
                              {known<std::int16_t>(), "i2"},
                              {known<std::uint16_t>(), "u2"},
                              {known<std::int32_t>(), "i4"},
                              {known<std::uint32_t>(), "u4"},
                              {known<std::int64_t>(), "i8"},
                              {known<std::uint64_t>(), "u8"},
                              {known<float>(), "f4"},
                              {known<double>(), "f8"},
                              {known<std::complex<float>>(), "c8"},
                              {known<std::complex<double>>(), "c16"}};
  for (auto const& [one, dtype] : all) {
    if (one.name == element.name && one.bytes == element.bytes) return numpy.attr("dtype")(dtype);
  }
  auto const name = element.name.view();
  if (!name.starts_with(numpy_prefix)) return nb::none();
  auto const text = std::string(name.substr(numpy_prefix.size()));
  auto const fields = nb::module_::import_("ast").attr("literal_eval")(nb::str(text.c_str()));
  // As `descr` has it of what is no structure: one field without a name.
  bool const plain = nb::len(fields) == 1 && nb::len(nb::object(fields[0][0])) == 0;
  return plain ? numpy.attr("dtype")(fields[0][1]) : numpy.attr("dtype")(fields);
}

}  // namespace unimem::python
