#include "calling_site.hpp"

#include <nanobind/nanobind.h>

#include <string_view>

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// What a Python string holds; empty for what is none.
std::string_view text_in(nb::handle string) {
  Py_ssize_t length = 0;
  auto const* const text =
      string.is_valid() && PyUnicode_Check(string.ptr()) ? PyUnicode_AsUTF8AndSize(string.ptr(), &length) : nullptr;
  if (text == nullptr) PyErr_Clear();  // of a string that UTF-8 cannot say
  return text == nullptr ? std::string_view{} : std::string_view(text, static_cast<std::size_t>(length));
}

/// By the module's name, as a program's own files may stand anywhere.
bool is_of_the_package(nb::handle frame) {
  constexpr std::string_view package = "unimem";
  nb::object const globals = frame.attr("f_globals");
  auto const module = text_in(PyDict_GetItemString(globals.ptr(), "__name__"));
  return module.starts_with(package) && (module.size() == package.size() || module[package.size()] == '.');
}

}  // namespace

Name calling_site() {
  auto frame = nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame.is_valid() && is_of_the_package(frame)) {
    frame = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
  }
  if (!frame.is_valid()) return {};
  auto* const innermost = reinterpret_cast<PyFrameObject*>(frame.ptr());
  auto const code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(innermost)));
  nb::object const file = code.attr("co_filename");
  return Name::of(text_in(file), static_cast<std::size_t>(PyFrame_GetLineNumber(innermost)));
}

}  // namespace unimem::python
