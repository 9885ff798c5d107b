#include "gil.hpp"

#include <unimem/device/timed_wait.hpp>

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// Only there do handlers of signals run. Known once and for all: a forked child's only thread becomes its main one.
bool on_the_main_thread() {
  auto const main = nb::module_::import_("threading").attr("main_thread")().attr("ident");
  return nb::cast<unsigned long>(main) == PyThread_get_thread_ident();
}

}  // namespace

bool wait_for_end(Event event, double seconds) {
  using Clock = std::chrono::steady_clock;
  if (event.ready()) return true;
  // How long a signal may have to wait: nobody notices, and looking costs nothing at this rate.
  constexpr std::chrono::milliseconds step{50};
  auto const longest = std::chrono::duration<double>(std::min(seconds, 1e9));
  auto const end = Clock::now() + std::chrono::duration_cast<Clock::duration>(longest);
  bool const looks = on_the_main_thread();
  while (true) {
    auto const until = looks ? std::min(end, Clock::now() + step) : end;
    bool const ended = unlocked([&] { return wait_until(event, until); });
    if (looks && PyErr_CheckSignals() != 0) nb::raise_python_error();
    if (ended) return true;
    if (Clock::now() >= end) return false;
  }
}

}  // namespace unimem::python
