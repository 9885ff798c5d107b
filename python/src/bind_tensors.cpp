#include <unimem/stream/tensors.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "gil.hpp"
#include "tensor_table.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

TensorTable open_table(std::string const& path) {
  return unlocked([&] {
    auto found = detail::open_tensor_file(path);
    TensorTable table{{}, std::move(found.metadata)};
    table.tensors.reserve(found.tensors.size());
    for (auto& [name, tensor] : found.tensors) table.tensors.push_back(std::move(tensor));
    return table;
  });
}

nb::tuple info_of(TensorTable const& table, std::size_t number) {
  auto const& tensor = table.tensors.at(number);
  if (!tensor.refused.empty()) detail::throw_refused(tensor);
  nb::list shape;
  for (auto const extent : tensor.shape) shape.append(extent);
  return nb::make_tuple(tensor.dtype, nb::tuple(shape), tensor.bytes, tensor.offset);
}

}  // namespace

void bind_tensors(nb::module_& m) {
  nb::class_<TensorTable>(m, "_TensorTable")
      .def(
          "names",
          [](TensorTable const& self) {
            nb::list names;
            for (auto const& tensor : self.tensors) names.append(tensor.name);
            return names;
          },
          nb::sig("def names(self) -> list[str]"))
      .def(
          "metadata",
          [](TensorTable const& self) {
            nb::dict texts;
            for (auto const& [key, text] : self.metadata) texts[nb::cast(key)] = text;
            return texts;
          },
          nb::sig("def metadata(self) -> dict[str, str]"))
      .def("info", &info_of, nb::arg("number"),
           nb::sig("def info(self, number: int) -> tuple[str, tuple[int, ...], int, int]"));
  m.def("_open_tensors", &open_table, nb::arg("path"));
}

}  // namespace unimem::python
