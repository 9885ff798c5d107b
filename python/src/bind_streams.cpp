#include <unimem/core/error.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/report/json.hpp>
#include <unimem/stream/stream_file.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <variant>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// Empty: not said.
std::optional<ElementType> element_named(std::string const& name) {
  if (name.empty()) return std::nullopt;
  return parse_element_type(name);
}

nb::object number_of(ElementValue const& value) {
  return std::visit([](auto number) { return nb::cast(number); }, value);
}

nb::tuple result_of(HistogramResult const& result) {
  nb::list counts;
  for (auto const count : result.counts) counts.append(count);
  return nb::make_tuple("HistogramResult", nb::tuple(counts), result.entropy_bits_per_byte);
}
nb::tuple result_of(StatisticsResult const& result) {
  return nb::make_tuple("StatisticsResult", result.count, number_of(result.min), number_of(result.max), result.mean,
                        result.standard_deviation);
}
nb::tuple result_of(MappingResult const& result) {
  return nb::make_tuple("MappingResult", result.elements);
}

nb::tuple result_of(ReductionResult const& result) {
  nb::list values;
  for (auto const& value : result.values) values.append(number_of(value));
  return nb::make_tuple("ReductionResult", std::string(to_string(result.element)), nb::tuple(values));
}

nb::dict dict_of(StreamResult const& r) {
  nb::dict result;
  result["kernel"] = r.kernel;
  result["device"] = r.device;
  result["element"] = std::string(to_string(r.element));
  result["nbytes"] = r.bytes;
  result["chunks"] = r.chunks;
  result["chunk_bytes"] = r.chunk_bytes;
  result["buffers"] = r.buffers;
  result["access"] = std::string(to_string(r.access));
  result["direct_bytes"] = r.direct_bytes;
  result["seconds"] = r.seconds;
  result["result"] = std::visit([](auto const& one) { return result_of(one); }, r.result);
  result["host_to_device_bytes"] = r.host_to_device_bytes;
  result["device_to_host_bytes"] = r.device_to_host_bytes;
  result["peak_device_bytes"] = r.peak_device_bytes;
  result["pool"] = to_json(r.pool);
  nb::list files;
  for (auto const& [path, bytes, checksums] : r.files) {
    files.append(nb::make_tuple(path.string(), bytes, nb::tuple(nb::cast(checksums))));
  }
  result["files"] = nb::tuple(files);
  result["checksum"] = r.checksum ? nb::object(nb::cast(std::string(to_string(*r.checksum)))) : nb::none();
  result["checksum_bytes"] = r.checksum_bytes;
  result["retries"] = r.retries;
  result["resumed_bytes"] = r.resumed_bytes;
  return result;
}

/// Asks a stream to end, from any thread.
struct Stop {
  std::stop_source source;
};

void check_not_ending() {
  if (!Ending::leaves_out_this_thread()) return;
  throw UnsupportedOperation("streaming", "an interpreter that is ending", "its functions can be called no more");
}

nb::dict stream(std::vector<std::string> const& paths, StreamKernel const& kernel, std::size_t chunk_bytes,
                std::size_t buffers, Device* device, std::string const& output, std::string const& element,
                std::size_t memory_limit, int access, std::string const& checksum, std::string const& manifest,
                std::string const& verify, unsigned retries, bool resume, MemoryManager* manager,
                nb::object const& progress, Stop const& stop) {
  StreamOptions options;
  options.chunk_bytes = chunk_bytes;
  options.buffers = buffers;
  options.device = device;
  options.output = output;
  options.element = element_named(element);
  options.memory_limit = memory_limit;
  options.access = static_cast<FileAccess>(access);
  if (!checksum.empty()) options.checksum = parse_checksum(checksum);
  options.manifest = manifest;
  options.verify = verify;
  options.retries = retries;
  options.resume = resume;
  options.manager = manager;
  options.cancel = stop.source.get_token();
  // Both on the calling thread, which has let go of the interpreter's lock. What Python raises, an interruption by the
  // keyboard among it, ends the stream and comes out of it.
  options.check_interrupt = [] {
    check_not_ending();
    Locked const acquired;
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  };
  if (!progress.is_none()) {
    options.progress = [&progress](std::uint64_t done, std::uint64_t total) {
      check_not_ending();
      Locked const acquired;
      progress(done, total);
    };
  }
  std::vector<std::filesystem::path> const files(paths.begin(), paths.end());
  auto const result = unlocked([&] { return stream_files(files, kernel, options); });
  return dict_of(result);
}

}  // namespace

void bind_streams(nb::module_& m) {
  nb::class_<StreamKernel>(m, "StreamKernel", nb::is_final(), "What `stream_file` does with each chunk.")
      .def("__repr__",
           [](StreamKernel const& self) { return "<unimem.StreamKernel '" + std::string(self.name()) + "'>"; })
      .def_prop_ro(
          "name", [](StreamKernel const& self) { return std::string(self.name()); }, "What results are called by.")
      .def_prop_ro("maps", &StreamKernel::maps, "Whether every chunk gives an output of its own size.");
  nb::class_<Stop>(m, "_Stop").def(nb::init<>()).def("request", [](Stop& self) { self.source.request_stop(); });
  m.def("_histogram", &histogram);
  m.def(
      "_statistics_kernel", [](std::string const& element) { return statistics(element_named(element)); },
      nb::arg("element"));
  m.def(
      "_affine",
      [](std::string const& element, double scale, double offset) {
        return affine(element_named(element), scale, offset);
      },
      nb::arg("element"), nb::arg("scale"), nb::arg("offset"));
  m.def(
      "_mapping",
      [](Kernel const& kernel, std::string const& element) { return mapping(kernel, element_named(element)); },
      nb::arg("kernel"), nb::arg("element"));
  m.def(
      "_reducing",
      [](Kernel const& kernel, std::string const& result, std::size_t count, std::string const& element) {
        return reducing(kernel, parse_element_type(result), count, element_named(element));
      },
      nb::arg("kernel"), nb::arg("result"), nb::arg("count"), nb::arg("element"));
  m.def("_stream", &stream, nb::arg("paths"), nb::arg("kernel"), nb::arg("chunk_bytes"), nb::arg("buffers"),
        nb::arg("device").none(), nb::arg("output"), nb::arg("element"), nb::arg("memory_limit"), nb::arg("access"),
        nb::arg("checksum"), nb::arg("manifest"), nb::arg("verify"), nb::arg("retries"), nb::arg("resume"),
        nb::arg("manager").none(), nb::arg("progress").none(), nb::arg("stop"));
}

}  // namespace unimem::python
