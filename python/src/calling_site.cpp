#include "calling_site.hpp"

#include <unimem/core/stack.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <nanobind/nanobind.h>

#include <string>
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

nb::object innermost_frame() {
  return nb::borrow(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
}
nb::object caller_of(nb::handle frame) {
  return nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}
nb::object code_of(nb::handle frame) {
  return nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
}
std::size_t line_of(nb::handle frame) {
  return static_cast<std::size_t>(PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject*>(frame.ptr())));
}

}  // namespace

Name calling_site() {
  auto frame = innermost_frame();
  while (frame.is_valid() && is_of_the_package(frame)) frame = caller_of(frame);
  if (!frame.is_valid()) return {};
  nb::object const file = code_of(frame).attr("co_filename");
  return Name::of(text_in(file), line_of(frame));
}

std::vector<std::string> calling_frames(std::size_t most) {
  std::vector<std::string> frames;
  for (auto frame = innermost_frame(); frame.is_valid() && frames.size() < most; frame = caller_of(frame)) {
    if (is_of_the_package(frame)) continue;
    auto const code = code_of(frame);
    nb::object const function = code.attr("co_name"), file = code.attr("co_filename");
    auto text = std::string(text_in(function)) + "() at ";
    frames.push_back(text.append(text_in(file)).append(":").append(std::to_string(line_of(frame))));
  }
  return frames;
}

std::shared_ptr<std::vector<std::uintptr_t> const> calls_of_python(MemoryManager const& manager) {
  auto const every = manager.stacks().every;
  if (every == 0) return nullptr;
  using Calls = std::vector<std::uintptr_t>;
  static auto const none = std::make_shared<Calls const>();
  static std::size_t made = 0;  // of all managers: a sample
  if (made++ % every != 0) return none;
  auto calls = std::make_shared<Calls>();
  for (auto const& call : calling_frames()) calls->push_back(name_call(call));
  return calls;
}

}  // namespace unimem::python
