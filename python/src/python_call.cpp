#include "python_call.hpp"

#include <unimem/core/error.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "departures.hpp"
#include "gil.hpp"
#include "host_array.hpp"
#include "numpy_api.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

std::string last_line(std::string const& text) {
  auto const last = text.find_last_not_of('\n');
  if (last == std::string::npos) return {};
  auto const before = text.find_last_of('\n', last);
  auto const first = before == std::string::npos ? 0 : before + 1;
  return text.substr(first, last + 1 - first);
}

}  // namespace

/// Calls that have been launched and have not ended. The interpreter waits for them before it ends, since afterwards
/// no thread could run them. Its lock is held for moments, and nothing else is taken meanwhile.
class PythonCall::UnderWay {
 public:
  void begin(PythonCall* call) {
    std::lock_guard const lock{mutex_};
    calls_.insert(call);
  }
  void end(PythonCall* call) noexcept {
    std::lock_guard const lock{mutex_};
    calls_.erase(call);
    if (calls_.empty()) none_left_.notify_all();
  }
  [[nodiscard]] bool empty() {
    std::lock_guard const lock{mutex_};
    return calls_.empty();
  }
  void wait_for_none() {
    std::unique_lock lock{mutex_};
    none_left_.wait(lock, [&] { return calls_.empty(); });
  }
  template <class Do>
  void for_each(Do const& each) {
    std::lock_guard const lock{mutex_};
    for (auto* const call : calls_) each(*call);
  }
  template <class Do>
  void apart_from_others(Do const& work) {
    std::lock_guard const lock{mutex_};
    work();
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_left_;
  std::set<PythonCall*> calls_;
};

PythonCall::UnderWay* PythonCall::under_way = new UnderWay;  // NOLINT(cppcoreguidelines-owning-memory)

PythonCall::PythonCall(std::string name, nb::handle function, std::vector<Argument> arguments)
    : among_(under_way),
      name_(std::move(name)),
      function_(function.inc_ref().ptr()),
      arguments_(std::move(arguments)),
      holds_(arguments_.size()) {
  for (auto const& argument : arguments_) Py_INCREF(argument.object);
  among_->begin(this);
}

PythonCall::~PythonCall() {
  if (function_ != nullptr) {
    depart(function_);
    for (auto const& argument : arguments_) depart(argument.object);
  }
  end();
}

void PythonCall::set_lease_options(std::vector<LeaseOption> options) {
  among_->apart_from_others([&] {
    for (std::size_t i = 0; i < holds_.size(); ++i) holds_[i].option = std::move(options[i]);
  });
}

void PythonCall::let_go_of(BufferCore const& core) {
  under_way->for_each([&](PythonCall& call) {
    for (std::size_t i = 0; i < call.holds_.size(); ++i) {
      if (call.arguments_[i].core.get() != &core) continue;
      auto& hold = call.holds_[i];
      if (!call.running_) {
        hold.apart = true;
      } else if (!hold.apart && hold.lent.memory().bytes == 0) {
        hold.lent = hold.option.take();
      }
    }
  });
}

bool PythonCall::any_under_way() {
  return !under_way->empty();
}

void PythonCall::wait_for_all() {
  under_way->wait_for_none();
}

void PythonCall::forget_those_of_the_parent() {
  under_way = new UnderWay;  // NOLINT(cppcoreguidelines-owning-memory)
}

std::vector<WorkHold> PythonCall::begin_to_run() {
  std::vector<WorkHold> held;
  held.reserve(holds_.size());
  among_->apart_from_others([&] {
    running_ = true;
    for (auto& hold : holds_) {
      if (!hold.apart) held.push_back(hold.option.hold());
      hold.apart = hold.apart || hold.option.gone();
    }
  });
  return held;
}

void PythonCall::run(std::span<const HostArgument> memory) {
  if (Ending::leaves_out_this_thread()) throw KernelError(name_, "the interpreter has ended");
  auto const held = begin_to_run();  // until another thread has the interpreter's lock again, and the work goes on
  Locked const acquired;
  std::string failure, traceback;
  try {
    nb::list arrays;
    auto const copies = checked_ ? copies_of(memory) : std::vector<Copy>{};
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      auto const& argument = arguments_[i];
      arrays.append(!argument.core ? nb::borrow(argument.object)
                    : checked_     ? array_on(argument, copies, memory[i].data)
                                   : array_over(argument, holds_[i], memory[i].data));
    }
    try {
      nb::borrow(function_)(*nb::tuple(arrays));
    } catch (nb::python_error& error) {
      traceback = error.what();  // with the exception in its last line
      failure = "the Python function raised " + last_line(traceback);
      // It was meant for the thread that waits here, and not for the kernel: that thread is told when it is back.
      if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
    }
    for (auto const& copy : copies) {
      auto const* const data = PyArray_DATA(reinterpret_cast<PyArrayObject*>(copy.array.ptr()));
      unlocked([&] { std::memcpy(copy.memory, data, copy.bytes); });
    }
    if (!checked_) write_back(arrays, memory);
    keep_what_is_kept(arrays, failure);
  } catch (std::exception const& error) {
    failure = error.what();
  }
  // While the interpreter is at hand: the thread that destroys this later may not have it.
  Py_CLEAR(function_);
  for (auto& argument : arguments_) Py_CLEAR(argument.object);
  end();
  if (!failure.empty()) throw KernelError(name_, failure, traceback);
}

auto PythonCall::copies_of(std::span<const HostArgument> memory) const -> std::vector<Copy> {
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    auto const bytes = arguments_[i].range.size();
    if (arguments_[i].core && bytes != 0) copies.push_back({static_cast<std::byte*>(memory[i].data), bytes, {}});
  }
  // What overlaps, in part too, is one.
  std::ranges::sort(copies, std::less<>{}, &Copy::memory);
  std::size_t kept = 0;
  for (auto& next : copies) {
    auto* const last = kept == 0 ? nullptr : &copies[kept - 1];
    if (last != nullptr && std::less<>{}(next.memory, last->memory + last->bytes)) {
      last->bytes = std::max(last->bytes, static_cast<std::size_t>(next.memory - last->memory) + next.bytes);
    } else {
      copies[kept++] = std::move(next);
    }
  }
  copies.resize(kept);
  auto const bytes_type = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(NPY_UBYTE)));
  for (auto& copy : copies) {
    copy.array = make_plain_array(nullptr, {copy.bytes}, bytes_type, true, nb::none());
    auto* const data = PyArray_DATA(reinterpret_cast<PyArrayObject*>(copy.array.ptr()));
    unlocked([&] { std::memcpy(data, copy.memory, copy.bytes); });
  }
  return copies;
}

nb::object PythonCall::array_on(Argument const& argument, std::span<const Copy> copies, void* memory) const {
  bool const writes = argument.intent != Intent::read;
  auto* const begin = static_cast<std::byte*>(memory);
  auto const on = std::ranges::find_if(copies, [&](Copy const& copy) {
    return !std::less<>{}(begin, copy.memory) && std::less<>{}(begin, copy.memory + copy.bytes);
  });
  if (argument.range.empty() || on == copies.end()) {
    return make_plain_array(nullptr, argument.shape, argument.object, writes, nb::none());
  }
  auto* const data = static_cast<std::byte*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(on->array.ptr())));
  // Behind a capsule: of a view on an array that an array owns NumPy would keep the owner alone, and a view that is
  // kept would not be noticed.
  nb::capsule const owner(nb::handle(on->array).inc_ref().ptr(),
                          [](void* array) noexcept { Py_DECREF(static_cast<PyObject*>(array)); });
  return make_plain_array(data + (begin - on->memory), argument.shape, argument.object, writes, owner);
}

nb::object PythonCall::array_over(Argument const& argument, Hold const& hold, void* memory) const {
  bool const writes = argument.intent != Intent::read;
  if (!hold.apart || argument.range.empty()) {
    return make_plain_array(memory, argument.shape, argument.object, writes, nb::none());
  }
  auto copy = make_plain_array(nullptr, argument.shape, argument.object, true, nb::none());
  auto* const array = reinterpret_cast<PyArrayObject*>(copy.ptr());
  auto* const data = PyArray_DATA(array);
  if (argument.intent != Intent::write) unlocked([&] { std::memcpy(data, memory, argument.range.size()); });
  if (!writes) PyArray_CLEARFLAGS(array, NPY_ARRAY_WRITEABLE);
  return copy;
}

void PythonCall::write_back(nb::list const& values, std::span<const HostArgument> memory) const {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    auto const& argument = arguments_[i];
    if (!holds_[i].apart || argument.intent == Intent::read || argument.range.empty()) continue;
    auto* const array = reinterpret_cast<PyArrayObject*>(PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i)));
    auto const* const data = PyArray_DATA(array);
    unlocked([&] { std::memcpy(memory[i].data, data, argument.range.size()); });
  }
}

/// Code that kept an array beyond the call would look at memory that has another owner by then: that is an error, and
/// the array keeps its memory.
void PythonCall::keep_what_is_kept(nb::list const& values, std::string& failure) {
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    auto const& argument = arguments_[i];
    nb::handle const array = PyList_GET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i));
    if (!argument.core || Py_REFCNT(array.ptr()) == 1) continue;  // one reference is the list's
    if (failure.empty()) {
      failure =
          "the Python function kept argument " + std::to_string(i + 1) + " beyond its call: copy what is to be kept";
    }
    if (checked_ || holds_[i].apart) continue;  // its own
    DeviceLease lease;
    among_->apart_from_others([&] {
      auto& hold = holds_[i];
      lease = hold.lent.memory().bytes != 0 ? std::move(hold.lent) : hold.option.take();
      // The next owner's from here on: letting go of it finds a lease.
      hold.apart = true;
    });
    keep_memory(array, argument.core, std::move(lease), argument.range);
  }
}

void PythonCall::end() noexcept {
  auto* const among = std::exchange(among_, nullptr);
  // A parent's calls are not waited for, and a thread that is not here may have the lock of those there.
  if (among == under_way) among->end(this);
}

}  // namespace unimem::python
