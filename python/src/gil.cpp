#include "gil.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/timed_wait.hpp>

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <exception>
#include <string>
#include <vector>

#include "calling_site.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// Of the thread: where in the Python program it was when it last let go of the interpreter's lock.
thread_local std::vector<std::string> place;

std::atomic<unsigned long> known_main_thread{0};  // a number alone, so relaxed

/// Only there do handlers of signals run.
bool on_the_main_thread() {
  auto main = known_main_thread.load(std::memory_order_relaxed);
  if (main == 0) {
    main = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    known_main_thread.store(main, std::memory_order_relaxed);
  }
  return main == PyThread_get_thread_ident();
}

/// Whether this thread waits for what an access needs before it begins.
bool looks_out() {
  return detail::is_in_work() || on_the_main_thread();
}

/// What says whose the handlers are. Kept until the process ends.
struct Signals {
  nb::object handler_of = nb::module_::import_("_signal").attr("getsignal");
  nb::object usual = nb::module_::import_("_signal").attr("default_int_handler");
};
Signals const* of_signals = nullptr;

/// Without the interpreter's lock, and with locks of the library's.
bool is_watched() noexcept {
  return waits_may_end && PyGILState_Check() == 0 &&
         known_main_thread.load(std::memory_order_relaxed) == PyThread_get_thread_ident();
}

/// Whether Ctrl-C has been pressed, and is going to be KeyboardInterrupt. No handler runs here, as it might come back
/// to what is locked; those of the user's own run when the wait is over.
bool is_interrupted() noexcept {
  Locked const acquired;
  // Nothing here is written in Python: that would call the handler on the way.
  if (!of_signals->handler_of(SIGINT).is(of_signals->usual) || PyOS_InterruptOccurred() == 0) return false;
  PyErr_SetInterrupt();  // for the handler, which is called when nothing is locked any more
  return true;
}

constexpr WaitWatch the_watch{&is_watched, &is_interrupted};

void wait_for_all(std::vector<Event> const& events) {
  for (auto const event : events) wait_for_end(event);
}

}  // namespace

bool const names_places = environment("UNIMEM_CHECK") == "2";

void note_place() noexcept {
  if (Ending::begun()) return;
  nb::error_scope const kept;  // of a thread that lets go of the lock in the middle of an exception
  try {
    place = calling_frames();
  } catch (std::exception const&) {  // without memory, or for frames that are none of Python's
    place.clear();
  }
}

int& Unlocked::depth() noexcept {
  thread_local int depth = 0;
  return depth;
}

std::vector<std::string> noted_place() noexcept {
  try {
    // An access by NumPy, which may have let go of the lock by itself.
    bool const in_python = Unlocked::depth() == 0 && PyGILState_GetThisThreadState() != nullptr && !Ending::begun();
    if (in_python) {
      Locked const acquired;
      note_place();
    }
    return place;
  } catch (std::exception const&) {
    return {};
  }
}

void raise_interruption() {
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
}

void watch_waits() {
  of_signals = new Signals;                 // NOLINT(cppcoreguidelines-owning-memory)
  static_cast<void>(on_the_main_thread());  // from here on it is known without the interpreter's lock
  set_wait_watch(&the_watch);
}

void main_thread_may_have_changed() noexcept {
  known_main_thread.store(0, std::memory_order_relaxed);
}

void look_out(BufferCore& core, ByteRange range) {
  if (looks_out()) wait_for_all(unlocked([&] { return core.work_on(range, Intent::read); }));
}

void wait_inside_kernel(BufferCore& core, ByteRange range) {
  if (!detail::is_in_work()) return;
  unlocked([&] {
    for (auto const event : core.work_on(range, Intent::read_write)) detail::await_end(event);
  });
}

void wait_for_work(BufferCore& core) {
  wait_for_all(unlocked([&] { return core.work_under_way(); }));
}

void look_out_on_host(BufferCore& core, ByteRange range, Intent intent) {
  if (core.host_ready(intent) || !looks_out()) return;
  wait_for_all(unlocked([&] { return core.work_on(range, intent); }));
  // Where pages tell what is written, a copy to the host is waited for with the buffer locked.
  bool const copies = intent != Intent::write && unlocked([&] { return core.tracking() != Tracking::pages; });
  if (copies && !core.host_ready(intent)) {
    try {
      wait_for_end(unlocked([&] { return core.is_allocated() ? core.fetch(range) : Event{}; }));
    } catch (OutOfMemory const&) {  // NOLINT(bugprone-empty-catch): the access says so itself, or can do without
    }
  }
}

void look_out_on_device(BufferCore& core, Device& device, ByteRange range) {
  if (core.device_ready(device) || !looks_out()) return;
  wait_for_all(unlocked([&] { return core.work_on(range, Intent::read, &device); }));
  wait_for_end(unlocked([&] {
    bool const copies = core.is_allocated() && core.missing_on(device, range) != 0;
    return copies ? core.prefetch(device, nullptr, range) : Event{};
  }));
}

bool wait_for_end(Event event, double seconds) {
  using Clock = std::chrono::steady_clock;
  if (event.ready()) return true;
  detail::WaitTerms terms{.looks_out = on_the_main_thread()};
  if (!std::isinf(seconds)) {
    auto const longest = std::chrono::duration<double>(std::min(seconds, 1e9));
    terms.limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(longest);
  }
  return unlocked([&] {
    return detail::await_end(event, terms, [&](Clock::time_point until) {
      bool const ended = wait_until(event, until);
      if (terms.looks_out) {
        Locked const acquired;
        raise_interruption();
      }
      return ended;
    });
  });
}

}  // namespace unimem::python
