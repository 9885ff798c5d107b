#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/detail/nb_list.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Strings and lists as arguments. Nanobind's own casters (stl/string.h, stl/vector.h) are noexcept and allocate: memory
// that runs out there ends the process. These throw, which nanobind reports as MemoryError.

namespace nanobind::detail {

template <>
struct type_caster<std::string> {
  NB_TYPE_CASTER(std::string, const_name("str"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) {
    if (!PyUnicode_Check(source.ptr())) return false;
    Py_ssize_t bytes = 0;
    char const* const text = PyUnicode_AsUTF8AndSize(source.ptr(), &bytes);
    if (text == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_MemoryError)) raise_python_error();
      PyErr_Clear();  // lone surrogates: no string of C++
      return false;
    }
    value.assign(text, static_cast<std::size_t>(bytes));
    return true;
  }

  static handle from_cpp(std::string const& value, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size()));
  }
};

template <class Entry>
struct type_caster<std::vector<Entry>> : list_caster<std::vector<Entry>, Entry> {
  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) {
    std::size_t count = 0;
    PyObject* copy = nullptr;
    PyObject** const items = seq_get(source.ptr(), &count, &copy);
    object const kept = steal(copy);
    if (items == nullptr) return false;
    this->value.clear();
    this->value.reserve(count);
    flags = flags_for_local_caster<Entry>(flags);
    for (std::size_t i = 0; i < count; ++i) {
      make_caster<Entry> caster;
      if (!caster.from_python(items[i], flags, cleanup) || !caster.template can_cast<Entry>()) return false;
      this->value.push_back(caster.operator cast_t<Entry>());
    }
    return true;
  }
};

}  // namespace nanobind::detail
