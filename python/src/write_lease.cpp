#include "write_lease.hpp"

#include <unimem/buffer/map_mode.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <nanobind/stl/unique_ptr.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "departures.hpp"
#include "gil.hpp"
#include "host_array.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

HostWrite write_to(Window const& window) {
  auto core = window.live();
  auto const range = window.range();
  look_out_on_host(*core, range, Intent::read_write);
  auto hold = unlocked([&] { return core->map(range, MapMode::read_write); });
  return {std::move(core), range, std::move(hold)};
}

}  // namespace

WriteLease::WriteLease(Window const& window, Taker taker) : WriteLease(write_to(window), taker) {}

WriteLease::~WriteLease() {
  if (!write_.core()) return;
  try {
    wait_inside_kernel(*write_.core(), write_.range());
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
  if (taker_ == Taker::may_write && has_been_overtaken()) {
    give_up();
  } else {
    write_.done_quietly();
  }
}

bool WriteLease::has_been_overtaken() const {
  Unlocked const released;
  auto& core = *write_.core();
  auto const range = write_.range();
  try {
    if (core.missing_on(device("cpu"), range) == 0) return false;
    throw CoherenceConflict(std::string(core.name()), {"device", range.begin, range.end},
                            {"host (handed out by DLPack, which may have been written)", range.begin, range.end});
  } catch (...) {
    core.fail_later(std::current_exception());
    return true;
  }
}

nb::tuple array_that_may_be_written(Window const& window) {
  auto lease = std::make_unique<WriteLease>(window, Taker::may_write);
  auto* const data = lease->address();
  nb::object const holder = nb::cast(std::move(lease));
  return nb::make_tuple(make_plain_array(data, window.shape(), window.dtype(), true, holder), holder);
}

nb::object elements_that_may_be_written(nb::handle array) {
  auto* const hold = hold_of(array);
  auto write = hold == nullptr ? std::nullopt : hold->before_write(array, 0, nb::none());
  if (!write) return nb::none();
  nb::object const holder = nb::cast(std::make_unique<WriteLease>(std::move(*write), Taker::may_write));
  return nb::make_tuple(make_plain_array_over(array, holder), holder);
}

void bind_write_leases(nb::module_& m) {
  nb::class_<WriteLease>(m, "WriteLease", "Host memory that counts as written when this is gone.")
      .def("give_up", &WriteLease::give_up, "It was not handed over after all.");
  m.def("_elements_that_may_be_written", &elements_that_may_be_written, nb::arg("array"),
        nb::sig("def _elements_that_may_be_written(array: numpy.ndarray) -> tuple[numpy.ndarray, WriteLease] | None"));
}

}  // namespace unimem::python
