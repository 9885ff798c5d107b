#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/external_work.hpp>
#include <unimem/device/queue.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "host_array.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// Work on a part of a buffer that Python has another library do at the host's memory, and whose end it tells: a
/// message of MPI's. Buffers order other work round it, as round a launch. Methods are called by one thread at a time.
class OutsideWork {
 public:
  /// Without the interpreter's lock: room may have to be waited for. Throws what a launch on the cpu device throws.
  OutsideWork(std::shared_ptr<BufferCore> core, ByteRange range, Intent intent)
      : core_(std::move(core)), queue_(device("cpu").create_queue()), bytes_(range.size()) {
    Operand const operand{core_.get(), range, intent};
    auto const submit = [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      needs_.assign(needs.begin(), needs.end());
      order_ = queue_->record();
      address_ = memory.front().empty() ? nullptr : queue_->device().address(memory.front());
      return work_.event();
    };
    event_ = use_on_device(*queue_, {&operand, 1}, submit);
  }
  OutsideWork(OutsideWork const&) = delete;
  OutsideWork& operator=(OutsideWork const&) = delete;
  /// With the interpreter's lock, which is released: the memory may be given back, and a thread ends, behind work that
  /// this has waited for and that may be Python's.
  ~OutsideWork() {
    Unlocked const released;
    if (!has_ended_) fail(std::make_exception_ptr(not_ended()), true);
    needs_.clear();
    queue_.reset();
    core_.reset();
  }

  [[nodiscard]] Event event() const noexcept { return event_; }
  [[nodiscard]] void* address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Whether what must end before it has. Work that needs failed work fails with its error, which is thrown. With the
  /// interpreter's lock.
  [[nodiscard]] bool may_begin() {
    if (!order_.ready()) return false;
    for (auto const need : needs_) {
      if (!need.ready()) return false;
      if (auto const failure = need.error()) {
        {
          Unlocked const released;  // coroutines and callbacks may be waiting for the end
          fail(failure, false);
        }
        std::rethrow_exception(failure);
      }
    }
    return true;
  }

  void succeed() noexcept {
    if (std::exchange(has_ended_, true)) return;
    work_.succeed();
  }
  /// `has_begun`: it may have written to the memory.
  void fail(std::exception_ptr failure, bool has_begun) noexcept {
    if (std::exchange(has_ended_, true)) return;
    work_.fail(std::move(failure), has_begun ? ExternalWork::Began::yes : ExternalWork::Began::no);
  }

 private:
  static UnsupportedOperation not_ended() {
    return {"a message", "MPI", "it had not ended when MPI or the process did"};
  }

  std::shared_ptr<BufferCore> core_;
  std::optional<Queue> queue_;
  std::size_t bytes_;
  ExternalWork work_;
  Event event_;
  std::vector<Event> needs_;
  Event order_;
  void* address_ = nullptr;
  bool has_ended_ = false;
};

template <class Error, class... Fields>
void fail_with(OutsideWork& work, bool has_begun, Fields&&... fields) {
  auto const failure = std::make_exception_ptr(Error(std::forward<Fields>(fields)...));
  Unlocked const released;  // as in `may_begin`
  work.fail(failure, has_begun);
}

}  // namespace

void bind_outside_work(nb::module_& m) {
  nb::class_<OutsideWork>(m, "OutsideWork", nb::is_final(),
                          "Work on a part of a buffer's host memory that another library does, and whose end is told.")
      .def_prop_ro("event", &OutsideWork::event, "Its end, which buffers order other work round.")
      .def_prop_ro(
          "array",
          [](nb::object const& self) {
            auto const& work = nb::cast<OutsideWork&>(self);
            nb::object const bytes = nb::module_::import_("numpy").attr("dtype")("u1");
            return make_plain_array(work.address(), {work.bytes()}, bytes, true, self);
          },
          nb::sig("def array(self, /) -> numpy.ndarray"), "The memory, for as long as it is under way.")
      .def("may_begin", &OutsideWork::may_begin,
           "Whether what must end before it has. If that has failed this raises its error, and so does the work.")
      .def("succeed",
           [](OutsideWork& self) {
             Unlocked const released;
             self.succeed();
           })
      .def(
          "fail_in_size",
          [](OutsideWork& self, std::string what, std::size_t expected, std::size_t actual, std::string const& unit) {
            fail_with<SizeMismatch>(self, false, std::move(what), expected, actual, unit);
          },
          nb::arg("what"), nb::arg("expected"), nb::arg("actual"), nb::arg("unit"))
      .def(
          "fail_in_call",
          [](OutsideWork& self, std::string call, std::int64_t code, std::string text, bool has_begun) {
            fail_with<DeviceError>(self, has_begun, "mpi", std::move(call), code, std::move(text));
          },
          nb::arg("call"), nb::arg("code"), nb::arg("text"), nb::arg("has_begun"))
      .def(
          "fail_unsupported",
          [](OutsideWork& self, std::string operation, std::string where, std::string reason) {
            fail_with<UnsupportedOperation>(self, false, std::move(operation), std::move(where), std::move(reason));
          },
          nb::arg("operation"), nb::arg("where"), nb::arg("reason"));

  m.def(
      "_begin_outside_work",
      [](Window& window, bool writes) {
        auto core = window.live();
        auto const range = window.range();
        auto const intent = writes ? Intent::write : Intent::read;
        return unlocked([&] { return std::make_unique<OutsideWork>(std::move(core), range, intent); });
      },
      nb::arg("window"), nb::arg("writes"));
  m.def("_ended_event", [] { return Event{}; }, "Of work that there was none of.");
  m.def(
      "_require_writable",
      [](Window& window, std::string const& operation) { window.live()->require_writable(operation); },
      nb::arg("window"), nb::arg("operation"));
}

}  // namespace unimem::python
