#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/orchestrator.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "departures.hpp"
#include "gil.hpp"
#include "host_array.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// Calls of Python functions that have been launched and have not ended. The interpreter waits for them before it ends,
/// since afterwards nobody could run them.
class CallsUnderWay {
 public:
  void begin() {
    std::lock_guard const lock{mutex_};
    ++count_;
  }
  void end() noexcept {
    std::lock_guard const lock{mutex_};
    if (--count_ == 0) none_left_.notify_all();
  }
  void wait_for_none() {
    std::unique_lock lock{mutex_};
    none_left_.wait(lock, [&] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_left_;
  std::size_t count_ = 0;
};

/// Never destroyed, since calls may end until the process does; a forked child, which has none of its parent's threads,
/// begins with another.
CallsUnderWay* calls_under_way = new CallsUnderWay;  // NOLINT(cppcoreguidelines-owning-memory)

/// What Python says of one argument of a launch.
struct Argument {
  std::shared_ptr<BufferCore> core;  ///< null for a scalar
  ByteRange range;
  Intent intent = Intent::read;
  std::vector<std::size_t> shape;  ///< of the array that a Python function is given
  PyObject* object = nullptr;      ///< its dtype, or the scalar itself: owned by who called
  std::string bytes;               ///< of a scalar
  char type = 'V';                 ///< of a scalar: as in the struct module
};

std::type_info const& type_of(char type) {
  switch (type) {
    case '?':
      return typeid(bool);
    case 'b':
      return typeid(std::int8_t);
    case 'B':
      return typeid(std::uint8_t);
    case 'h':
      return typeid(std::int16_t);
    case 'H':
      return typeid(std::uint16_t);
    case 'i':
      return typeid(std::int32_t);
    case 'I':
      return typeid(std::uint32_t);
    case 'q':
      return typeid(std::int64_t);
    case 'Q':
      return typeid(std::uint64_t);
    case 'f':
      return typeid(float);
    case 'd':
      return typeid(double);
    default:
      return typeid(std::byte);
  }
}

/// From (window, intent, offset, count, shape) or (bytes, type, object), as unimem._kernels makes them.
std::vector<Argument> arguments_from(nb::sequence const& given) {
  std::vector<Argument> result;
  for (nb::handle const item : given) {
    auto& argument = result.emplace_back();
    auto const fields = nb::cast<nb::tuple>(item);
    if (nb::isinstance<Window>(fields[0])) {
      auto& window = nb::cast<Window&>(fields[0]);
      argument.core = window.live();
      argument.intent = static_cast<Intent>(nb::cast<int>(fields[1]));
      argument.range = window.part(nb::cast<std::size_t>(fields[2]), nb::cast<std::size_t>(fields[3]));
      argument.shape = nb::cast<std::vector<std::size_t>>(fields[4]);
      argument.object = window.dtype().ptr();
    } else {
      auto const bytes = nb::cast<nb::bytes>(fields[0]);
      argument.bytes.assign(bytes.c_str(), bytes.size());
      argument.type = nb::cast<std::string>(fields[1]).at(0);
      argument.object = nb::handle(fields[2]).ptr();
    }
  }
  return result;
}

std::vector<LaunchArgument> launch_arguments(std::vector<Argument> const& arguments) {
  std::vector<LaunchArgument> list(arguments.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto const& from = arguments[i];
    if (from.core) {
      list[i].buffer = {{from.core.get(), from.range, from.intent}, &typeid(std::byte)};
      continue;
    }
    std::memcpy(list[i].scalar.data(), from.bytes.data(), from.bytes.size());
    list[i].scalar_bytes = from.bytes.size();
    list[i].scalar_type = &type_of(from.type);
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

Event launch_source(Kernel const& kernel, Device* device, std::array<std::size_t, 3> range, nb::sequence const& given) {
  auto const arguments = arguments_from(given);
  return unlocked([&] {
    Queue* const queue = device == nullptr ? nullptr : &device->default_queue();
    return launch_kernel(queue, kernel, Range{range[0], range[1], range[2]}, launch_arguments(arguments));
  });
}

/// Where an execution goes, by the forms that a kernel has: the Python function stands for a host form.
nb::tuple choose(std::string name, bool has_source, bool has_function, nb::sequence const& given,
                 std::optional<std::string> const& backend) {
  auto const arguments = arguments_from(given);
  auto const choice = unlocked([&] {
    Kernel kernel(std::move(name));
    if (has_source) kernel.source("//");
    if (has_function) kernel.host([](WorkItem) {});
    ExecutionOptions options;
    if (backend) options.backend = backend_from(*backend);
    return choose_device(kernel, launch_arguments(arguments), options);
  });
  return nb::make_tuple(nb::cast(choice.device, nb::rv_policy::reference), choice.reason);
}

/// What the buffers among the arguments have moved since they were made, each once: bytes and copies.
nb::tuple moved_by(nb::sequence const& given) {
  auto const arguments = arguments_from(given);
  std::set<BufferCore const*> buffers;
  for (auto const& argument : arguments) {
    if (argument.core) buffers.insert(argument.core.get());
  }
  std::uint64_t bytes = 0, copies = 0;
  for (auto const* const buffer : buffers) {
    auto const counts = buffer->statistics();
    bytes += counts.host_to_device_bytes + counts.device_to_host_bytes + counts.device_to_device_bytes;
    copies += counts.host_to_device_copies + counts.device_to_host_copies + counts.device_to_device_copies;
  }
  return nb::make_tuple(bytes, copies);
}

/// Seconds that as many launches take here, for benchmarks: what of a launch from Python is Python's.
double time_launches(Kernel const& kernel, std::array<std::size_t, 3> range, nb::sequence const& given,
                     std::size_t count) {
  auto const arguments = arguments_from(given);
  return unlocked([&] {
    auto const begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < count; ++i) {
      static_cast<void>(
          launch_kernel(nullptr, kernel, Range{range[0], range[1], range[2]}, launch_arguments(arguments)));
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
}

std::string last_line(std::string const& text) {
  auto const last = text.find_last_not_of('\n');
  if (last == std::string::npos) return {};
  auto const before = text.find_last_of('\n', last);
  auto const first = before == std::string::npos ? 0 : before + 1;
  return text.substr(first, last + 1 - first);
}

/// One call of a Python function over NumPy arrays, on a queue of a device that runs code of the host's.
class PythonCall {
 public:
  PythonCall(std::string name, nb::handle function, std::vector<Argument> arguments)
      : name_(std::move(name)), function_(function.inc_ref().ptr()), arguments_(std::move(arguments)) {
    for (auto const& argument : arguments_) Py_INCREF(argument.object);
    under_way_->begin();
  }
  PythonCall(PythonCall const&) = delete;
  PythonCall& operator=(PythonCall const&) = delete;
  /// On any thread, with or without having been called.
  ~PythonCall() {
    if (function_ != nullptr) {
      depart(function_);
      for (auto const& argument : arguments_) depart(argument.object);
    }
    end();
  }

  /// One for each argument, before it may run.
  void set_lease_options(std::vector<LeaseOption> options) { options_ = std::move(options); }

  /// On a thread of the library's, or one that waits: without the interpreter's lock.
  void run(std::span<const HostArgument> memory) {
    if (Ending::leaves_out_this_thread()) throw KernelError(name_, "the interpreter has ended");
    nb::gil_scoped_acquire const acquired;
    std::string failure, traceback;
    try {
      auto const arrays = arrays_over(memory);
      try {
        nb::borrow(function_)(*nb::tuple(arrays));
      } catch (nb::python_error& error) {
        traceback = error.what();  // with the exception in its last line
        failure = "the Python function raised " + last_line(traceback);
        // It was meant for whoever waits here, and not for the kernel: he is told when he is back.
        if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
      }
      keep_what_is_kept(arrays, failure);
    } catch (std::exception const& error) {
      failure = error.what();
    }
    // While the interpreter is at hand: whoever destroys this later may not have it.
    Py_CLEAR(function_);
    for (auto& argument : arguments_) Py_CLEAR(argument.object);
    end();
    if (!failure.empty()) throw KernelError(name_, failure, traceback);
  }

 private:
  nb::list arrays_over(std::span<const HostArgument> memory) const {
    nb::list values;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      auto const& argument = arguments_[i];
      values.append(argument.core ? make_plain_array(memory[i].data, argument.shape, argument.object,
                                                     argument.intent != Intent::read, nb::none())
                                  : nb::borrow(argument.object));
    }
    return values;
  }

  /// Whoever kept an array beyond the call would look at memory that is somebody else's by then: that is an error, and
  /// the array keeps its memory.
  void keep_what_is_kept(nb::list const& values, std::string& failure) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      auto const& argument = arguments_[i];
      nb::handle const array = PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i));
      if (!argument.core || Py_REFCNT(array.ptr()) == 1) continue;  // one reference is the list's
      if (failure.empty()) {
        failure =
            "the Python function kept argument " + std::to_string(i + 1) + " beyond its call: copy what is to be kept";
      }
      if (i < options_.size()) keep_memory(array, argument.core, options_[i].take(), argument.range);
    }
  }

  void end() noexcept {
    if (auto* const under_way = std::exchange(under_way_, nullptr)) under_way->end();
  }

  CallsUnderWay* under_way_ = calls_under_way;
  std::string name_;
  PyObject* function_;
  std::vector<Argument> arguments_;
  std::vector<LeaseOption> options_;
};

Event launch_python(std::string name, nb::handle function, Device* named, nb::sequence const& given) {
  if (Ending::begun()) throw KernelError(std::move(name), "the interpreter is ending");
  auto const arguments = arguments_from(given);
  auto const call = std::make_shared<PythonCall>(name, function, arguments);
  return unlocked([&] {
    Device* device = named;
    std::vector<Operand> operands;
    for (auto const& argument : arguments) {
      if (!argument.core) continue;
      operands.push_back({argument.core.get(), argument.range, argument.intent});
      if (device == nullptr) device = &argument.core->default_device();
    }
    auto& queue = (device == nullptr ? default_device() : *device).default_queue();
    auto const loop = [call](Range, std::size_t, std::size_t, std::span<const HostArgument> memory) {
      call->run(memory);
    };
    auto const program = queue.device().compile({std::move(name), {}, loop});
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
        list[i].memory = memory[next++];
        list[i].writes = arguments[i].intent != Intent::read;
        options[i] = arguments[i].core->lease_option(queue.device(), arguments[i].range);
      }
      call->set_lease_options(std::move(options));
      return queue.run(program, Range{1}, list, needs);
    });
  });
}

}  // namespace

void bind_kernels(nb::module_& m) {
  nb::class_<Kernel>(m, "_Kernel", "A kernel's source form.")
      .def(nb::init<std::string>(), nb::arg("name"))
      .def("_source", [](Kernel& self, std::string text) { self.source(std::move(text)); });
  m.def(
      "_launch_source",
      [](Kernel const& kernel, Device* device, std::vector<std::size_t> const& range, nb::sequence const& arguments) {
        return launch_source(kernel, device, {range.at(0), range.at(1), range.at(2)}, arguments);
      },
      nb::arg("kernel"), nb::arg("device").none(), nb::arg("range"), nb::arg("arguments"));
  m.def("_time_launches", [](Kernel const& kernel, std::vector<std::size_t> const& range, nb::sequence const& arguments,
                             std::size_t count) {
    return time_launches(kernel, {range.at(0), range.at(1), range.at(2)}, arguments, count);
  });
  m.def("_choose_device", &choose, nb::arg("name"), nb::arg("has_source"), nb::arg("has_function"),
        nb::arg("arguments"), nb::arg("backend").none());
  m.def("_moved_by", &moved_by, nb::arg("arguments"));
  m.def("_launch_python", &launch_python, nb::arg("name"), nb::arg("function"), nb::arg("device").none(),
        nb::arg("arguments"));
  m.def("_after_fork", [] { calls_under_way = new CallsUnderWay; });  // NOLINT(cppcoreguidelines-owning-memory)
  m.def("_interpreter_ends", [] {
    unlocked([] { calls_under_way->wait_for_none(); });
    Ending::begin();
  });
}

}  // namespace unimem::python
