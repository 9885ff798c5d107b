#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/orchestrator.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "departures.hpp"
#include "gil.hpp"
#include "log_bridge.hpp"
#include "python_call.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// What a scalar is, by its letter in the struct module.
struct ScalarKind {
  std::type_info const* type = &typeid(std::byte);
  ValueType value;
};

template <class T>
ScalarKind kind_of() {
  return {&typeid(T), value_type_of<T>()};
}

ScalarKind kind_of(char type) {
  switch (type) {
    case '?':
      return kind_of<bool>();
    case 'b':
      return kind_of<std::int8_t>();
    case 'B':
      return kind_of<std::uint8_t>();
    case 'h':
      return kind_of<std::int16_t>();
    case 'H':
      return kind_of<std::uint16_t>();
    case 'i':
      return kind_of<std::int32_t>();
    case 'I':
      return kind_of<std::uint32_t>();
    case 'q':
      return kind_of<std::int64_t>();
    case 'Q':
      return kind_of<std::uint64_t>();
    case 'f':
      return kind_of<float>();
    case 'd':
      return kind_of<double>();
    default:
      return {};
  }
}

/// From (window, intent, offset, count, shape) or (bytes, type, object), as unimem._kernels makes them.
std::vector<Argument> arguments_from(nb::sequence const& given) {
  std::vector<Argument> result;
  for (nb::handle const item : given) {
    auto& argument = result.emplace_back();
    auto const fields = nb::cast<nb::tuple>(item);
    if (nb::isinstance<Window>(fields[0])) {
      auto& window = window_of(fields[0]);
      argument.core = window.live();
      argument.intent = static_cast<Intent>(nb::cast<int>(fields[1]));
      argument.range = window.part(nb::cast<std::size_t>(fields[2]), nb::cast<std::size_t>(fields[3]));
      argument.shape = nb::cast<std::vector<std::size_t>>(fields[4]);
      argument.object = window.dtype().ptr();
      argument.value = window.value_type();
    } else {
      auto const bytes = nb::cast<nb::bytes>(fields[0]);
      argument.bytes.assign(bytes.c_str(), bytes.size());
      argument.type = nb::cast<std::string>(fields[1]).at(0);
      argument.object = nb::handle(fields[2]).ptr();
      argument.is_plain_number = PyLong_CheckExact(argument.object) || PyFloat_CheckExact(argument.object);
    }
  }
  return result;
}

std::vector<LaunchArgument> launch_arguments(std::vector<Argument> const& arguments) {
  std::vector<LaunchArgument> list(arguments.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto const& from = arguments[i];
    if (from.core) {
      list[i].buffer = {{from.core.get(), from.range, from.intent}, &typeid(std::byte), from.value};
      continue;
    }
    std::memcpy(list[i].scalar.data(), from.bytes.data(), from.bytes.size());
    list[i].scalar_bytes = from.bytes.size();
    auto const kind = kind_of(from.type);
    list[i].scalar_type = kind.type;
    list[i].scalar_value = kind.value;
  }
  return list;
}

/// By its name, as devices tell it.
Backend backend_from(std::string const& name) {
  for (auto const backend : {Backend::cpu, Backend::opencl, Backend::cuda, Backend::metal, Backend::sim}) {
    if (name == to_string(backend)) return backend;
  }
  throw InvalidArgument("backend", name, "cpu, opencl, cuda, metal or sim");
}

/// Puts `value` in the place of a scalar.
template <class T>
void replace_scalar(LaunchArgument& argument, T value) {
  argument = detail::launch_argument(value);
}

/// Python's own numbers have no width: where the kernel takes floating point they become what it takes. What it does
/// with others is the launch's to say.
void convert_numbers(Program const& program, std::vector<Argument> const& given, std::vector<LaunchArgument>& list) {
  auto const* const parameters = program.parameters();
  if (parameters == nullptr || parameters->size() != list.size()) return;
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto const wanted = (*parameters)[i].value;
    bool const takes_float = (*parameters)[i].kind == ProgramParameter::Kind::scalar && wanted.lanes == 1 &&
                             wanted.number == ValueType::Number::floating && wanted.bytes >= sizeof(float);
    if (!given[i].is_plain_number || !takes_float || list[i].scalar_value == wanted) continue;
    double value = 0;
    if (given[i].type == 'q') {
      std::int64_t integer = 0;
      std::memcpy(&integer, list[i].scalar.data(), sizeof integer);
      value = static_cast<double>(integer);
      bool const is_float = wanted.bytes == sizeof(float);
      auto const kept = is_float ? static_cast<double>(static_cast<float>(integer)) : value;
      constexpr double beyond = 0x1p63;  // the largest integers round to it, and it is none of theirs
      if (kept == beyond || static_cast<std::int64_t>(kept) != integer) {
        throw InvalidArgument("argument " + std::to_string(i + 1), std::to_string(integer),
                              std::string("an integer that the kernel's float") + (is_float ? "32" : "64") +
                                  " has, or a float, which may be rounded");
      }
    } else if (given[i].type == 'd') {
      std::memcpy(&value, list[i].scalar.data(), sizeof value);
    } else {
      continue;
    }
    if (wanted.bytes == sizeof(float)) {
      if (std::isfinite(value) && std::abs(value) > double{std::numeric_limits<float>::max()}) {
        std::array<char, 32> text{};  // the longest double has 24 characters
        auto const end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
        throw InvalidArgument("argument " + std::to_string(i + 1), std::string(text.data(), end),
                              "within the kernel's float32");
      }
      replace_scalar(list[i], static_cast<float>(value));
    }
    if (wanted.bytes == sizeof(double)) replace_scalar(list[i], value);
  }
}

/// From three numbers of items and three of a group's, which are 0 where none is asked for.
Range range_from(std::vector<std::size_t> const& numbers) {
  return {numbers.at(0), numbers.at(1), numbers.at(2), {numbers.at(3), numbers.at(4), numbers.at(5)}};
}

Event launch_source(Kernel const& kernel, Device& device, Range range, nb::sequence const& given) {
  auto const arguments = arguments_from(given);
  return unlocked([&] {
    auto list = launch_arguments(arguments);
    auto const is_plain = [](Argument const& argument) { return argument.is_plain_number; };
    if (std::ranges::any_of(arguments, is_plain)) convert_numbers(*kernel.program(device), arguments, list);
    return launch_kernel(&device.default_queue(), kernel, range, list);
  });
}

/// Where an execution goes, by the forms that a kernel has: the Python function stands for a host form.
nb::tuple choose(std::string name, bool has_source, bool has_function, nb::sequence const& given,
                 std::optional<nb::str> const& backend, Device* by_default) {
  auto const arguments = arguments_from(given);
  auto const wanted = backend ? std::optional{backend_from(backend->c_str())} : std::nullopt;
  auto const choice = unlocked([&] {
    Kernel kernel(std::move(name));
    if (has_source) kernel.source("//");
    if (has_function) kernel.host([](WorkItem) {});
    ExecutionOptions options;
    options.backend = wanted;
    options.default_device = by_default;
    return choose_device(kernel, launch_arguments(arguments), options);
  });
  return nb::make_tuple(nb::cast(choice.device, nb::rv_policy::reference), choice.reason);
}

/// What moves for the buffers among the arguments of a launch from now on, each counted once.
class TrafficOf {
 public:
  explicit TrafficOf(nb::sequence const& given) {
    for (auto const& argument : arguments_from(given)) {
      if (argument.core) before_.try_emplace(argument.core, argument.core->statistics());
    }
  }
  TrafficOf(TrafficOf const&) = delete;
  TrafficOf& operator=(TrafficOf const&) = delete;
  ~TrafficOf() {
    Unlocked const released;  // the last share in a core may wait for work that needs the interpreter
    before_.clear();
  }

  /// Bytes, and copies.
  [[nodiscard]] nb::tuple so_far() const {
    Traffic sum;
    for (auto const& [core, before] : before_) {
      auto const moved = core->statistics().traffic_since(before);
      sum.bytes += moved.bytes;
      sum.copies += moved.copies;
    }
    return nb::make_tuple(sum.bytes, sum.copies);
  }

 private:
  std::map<std::shared_ptr<BufferCore>, BufferStatistics> before_;
};

/// Seconds that as many launches take here, for benchmarks: what of a launch from Python is Python's.
double time_launches(Kernel const& kernel, Range range, nb::sequence const& given, std::size_t count) {
  auto const arguments = arguments_from(given);
  return unlocked([&] {
    auto const begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < count; ++i) {
      static_cast<void>(launch_kernel(nullptr, kernel, range, launch_arguments(arguments)));
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
}

/// By turns a key and its value.
std::map<std::string, std::string, std::less<>> mapped(std::vector<std::string> const& items) {
  std::map<std::string, std::string, std::less<>> result;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) result.insert_or_assign(items[i], items[i + 1]);
  return result;
}

/// Returns the text that is compiled, whose files may have any bytes.
nb::bytes source_with(Kernel& kernel, std::string text, std::string name, std::vector<std::string> const& defines,
                      std::vector<std::string> const& headers, std::vector<std::string> const& folders,
                      bool fast_math) {
  KernelSource const source{
      std::move(text), std::move(name), mapped(defines), mapped(headers), {folders.begin(), folders.end()}, fast_math};
  unlocked([&] { kernel.source(source); });  // reads files
  auto const& whole = kernel.forms().source;
  return nb::bytes(whole.data(), whole.size());
}

/// Of the type that its letter in the struct module says.
KernelConstant constant_from(char type, nb::handle value) {
  switch (type) {
    case '?':
      return nb::cast<bool>(value);
    case 'i':
      return nb::cast<std::int32_t>(value);
    case 'I':
      return nb::cast<std::uint32_t>(value);
    case 'q':
      return nb::cast<std::int64_t>(value);
    case 'Q':
      return nb::cast<std::uint64_t>(value);
    case 'f':
      return static_cast<float>(nb::cast<double>(value));
    default:
      return nb::cast<double>(value);
  }
}

/// With constants of these names, types and values.
Kernel specialized(Kernel const& kernel, std::vector<std::string> const& names, std::string const& types,
                   nb::sequence const& values) {
  KernelConstants constants;
  for (std::size_t i = 0; i < names.size(); ++i) constants.emplace(names[i], constant_from(types.at(i), values[i]));
  return unlocked([&] { return kernel.specialize(constants); });
}

Event launch_python(std::string name, nb::handle function, Device& device, nb::sequence const& given) {
  if (Ending::begun()) throw KernelError(std::move(name), "the interpreter is ending");
  if (Ending::comes_for_this_thread() && !detail::is_in_work()) {
    PyErr_SetNone(PyExc_SystemExit);  // which ends a thread without a word
    throw nb::python_error();
  }
  auto const arguments = arguments_from(given);
  auto made = std::make_shared<PythonCall>(name, function, arguments);
  return unlocked([&] {
    auto const call = std::move(made);  // it goes without the interpreter's lock: the last share in a core may wait
    std::vector<Operand> operands;
    for (auto const& argument : arguments) {
      if (argument.core) operands.push_back({argument.core.get(), argument.range, argument.intent});
    }
    auto& queue = device.default_queue();
    auto const loop = [call](Range, std::size_t, std::size_t, std::span<const HostArgument> memory) {
      call->run(memory);
    };
    auto program = queue.device().compile({name, {}, loop});
    auto const checked = detail::checked_program(program, queue.device(), name, Range{1}, launch_arguments(arguments));
    if (checked.program) {
      program = checked.program;
      call->run_checked();
    }
    return use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::vector<KernelArgument> list(arguments.size());
      std::vector<LeaseOption> options(arguments.size());
      std::size_t next = 0;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!arguments[i].core) {
          list[i].kind = KernelArgument::Kind::scalar;  // the function has the object itself
          list[i].scalar_bytes = 1;
          continue;
        }
        list[i].memory = memory[next];
        list[i].writes = arguments[i].intent != Intent::read;
        options[i] = arguments[i].core->lease_option(queue.device(), arguments[i].range, memory[next++]);
      }
      call->set_lease_options(std::move(options));
      if (checked.program) checked.begin();
      return queue.run(program, Range{1}, list, needs);
    });
  });
}

}  // namespace

void bind_kernels(nb::module_& m) {
  nb::class_<Kernel>(m, "_Kernel", "A kernel's source form.")
      .def(nb::init<std::string>(), nb::arg("name"))
      .def("_source", [](Kernel& self, std::string text) { self.source(std::move(text)); })
      .def("_source_with", &source_with, nb::arg("text"), nb::arg("name"), nb::arg("defines"), nb::arg("headers"),
           nb::arg("folders"), nb::arg("fast_math"))
      .def("_specialize", &specialized, nb::arg("names"), nb::arg("types"), nb::arg("values"))
      .def("_group", [](Kernel& self, std::size_t x, std::size_t y, std::size_t z) { self.group({x, y, z}); })
      .def("_build", [](Kernel const& self, Device& device) { unlocked([&] { self.build(device); }); })
      .def("_is_built", &Kernel::is_built);
  m.def(
      "_launch_source",
      [](Kernel const& kernel, Device& device, std::vector<std::size_t> const& range, nb::sequence const& arguments) {
        return launch_source(kernel, device, range_from(range), arguments);
      },
      nb::arg("kernel"), nb::arg("device"), nb::arg("range"), nb::arg("arguments"));
  m.def("_time_launches", [](Kernel const& kernel, std::vector<std::size_t> const& range, nb::sequence const& arguments,
                             std::size_t count) { return time_launches(kernel, range_from(range), arguments, count); });
  m.def("_choose_device", &choose, nb::arg("name"), nb::arg("has_source"), nb::arg("has_function"),
        nb::arg("arguments"), nb::arg("backend").none(), nb::arg("default_device").none());
  nb::class_<TrafficOf>(m, "_TrafficOf", "What moves for the buffers of a launch from now on.")
      .def(nb::init<nb::sequence const&>(), nb::arg("arguments"))
      .def("so_far", &TrafficOf::so_far, nb::sig("def so_far(self) -> tuple[int, int]"));
  m.def("_launch_python", &launch_python, nb::arg("name"), nb::arg("function"), nb::arg("device"),
        nb::arg("arguments"));
  m.def("_after_fork", [] {
    PythonCall::forget_those_of_the_parent();
    forget_messages_of_the_parent();
    main_thread_may_have_changed();
  });
  // Python's levels decide what is shown; a level that the environment names decides before them.
  m.def("_log_to_python", [] { log_to_python(!environment("UNIMEM_LOG_LEVEL")); });
  m.def("_interpreter_ends", [] {
    Ending::come();
    while (PythonCall::any_under_way()) unlocked([] { PythonCall::wait_for_all(); });
    python_log_ends();
    Ending::begin();
  });
}

}  // namespace unimem::python
