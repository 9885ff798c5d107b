#include "write_lease.hpp"

#include <unimem/buffer/map_mode.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <nanobind/stl/unique_ptr.h>

#include <exception>
#include <string>
#include <utility>

#include "departures.hpp"
#include "gil.hpp"
#include "host_array.hpp"
#include "numpy_api.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// What a view keeps: the plain array's own view, whose shape and strides it shows, and the lease.
struct Lent {
  Py_buffer inner{};
  std::unique_ptr<WriteLease> lease;
};

}  // namespace

WriteLease::WriteLease(Window const& window, Taker taker) : range_(window.range()), taker_(taker) {
  auto core = window.live();
  look_out_on_host(*core, range_, Intent::read_write);
  hold_ = unlocked([&] { return core->map(range_, MapMode::read_write); });
  core_ = std::move(core);
}

WriteLease::~WriteLease() {
  if (!core_) return;
  try {
    wait_inside_kernel(*core_, range_);
  } catch (UnsupportedOperation const&) {
    // This thread runs the work that the counting waits for. The lease goes on as an object of its own.
    depart(nb::cast(std::unique_ptr<WriteLease>(new WriteLease(std::move(*this)))).release().ptr());
    return;
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch)
    // What waiting comes to the counting comes to as well.
  }
  end();
}

void WriteLease::end() {
  Unlocked const released;
  auto const core = std::exchange(core_, nullptr);
  auto const hold = std::exchange(hold_, {});
  try {
    if (taker_ == Taker::may_write && core->missing_on(device("cpu"), range_) != 0) {
      core->nothing_written_through_map();
      throw CoherenceConflict(std::string(core->name()), {"device", range_.begin, range_.end},
                              {"host (handed out by DLPack, which may have been written)", range_.begin, range_.end});
    }
    core->written_through_map(range_, hold);
  } catch (...) {
    core->fail_later(std::current_exception());
  }
}

void WriteLease::give_up() {
  if (!core_) return;
  Unlocked const released;
  auto const core = std::exchange(core_, nullptr);
  core->nothing_written_through_map();
  hold_.end();
}

int lend_to_write(nb::handle window, Py_buffer* view, int flags) {
  auto const& lent_of = window_of(window);
  auto lent = std::make_unique<Lent>();
  lent->lease = std::make_unique<WriteLease>(lent_of, Taker::writes);
  try {
    auto const array = make_plain_array(lent->lease->address(), lent_of.shape(), lent_of.dtype(), true, nb::none());
    if (PyObject_GetBuffer(array.ptr(), &lent->inner, flags) != 0) nb::raise_python_error();
  } catch (...) {
    lent->lease->give_up();
    throw;
  }
  *view = lent->inner;
  view->obj = nb::borrow(window).release().ptr();
  view->internal = lent.release();
  return 0;
}

void take_back(PyObject* /*window*/, Py_buffer* view) noexcept {
  std::unique_ptr<Lent> const lent(static_cast<Lent*>(std::exchange(view->internal, nullptr)));
  if (lent) PyBuffer_Release(&lent->inner);
}

nb::tuple array_that_may_be_written(Window const& window) {
  auto lease = std::make_unique<WriteLease>(window, Taker::may_write);
  auto* const data = lease->address();
  nb::object const holder = nb::cast(std::move(lease));
  return nb::make_tuple(make_plain_array(data, window.shape(), window.dtype(), true, holder), holder);
}

void bind_write_leases(nb::module_& m) {
  nb::class_<WriteLease>(m, "WriteLease", "Host memory that counts as written when this is gone.")
      .def("give_up", &WriteLease::give_up, "It was not handed over after all.");
}

}  // namespace unimem::python
