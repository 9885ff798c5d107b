#include "departures.hpp"

#include <atomic>
#include <new>
#include <utility>

#include "gil.hpp"

namespace unimem::python {
namespace {

struct Departure {
  PyObject* object;
  Departure* next;
};

/// The last first. Without a lock, since a thread that a forked child does not have may be in the middle of a
/// departure: there that one object stays, and the others go. Only all are ever taken, so that none can come back
/// meanwhile.
constinit std::atomic<Departure*> departures{nullptr};

int see_off(void* /*unused*/) {
  auto* leaving = departures.exchange(nullptr, std::memory_order_acquire);  // with what is in them
  while (leaving != nullptr) {
    auto const* const one = std::exchange(leaving, leaving->next);
    auto* const object = one->object;
    delete one;
    Py_DECREF(object);
  }
  return 0;
}

}  // namespace

void depart(PyObject* object) noexcept {
  if (Ending::begun() || Py_IsInitialized() == 0) return;
  auto* const one = new (std::nothrow) Departure{object, departures.load(std::memory_order_relaxed)};
  if (one == nullptr) return;  // without memory for two pointers the object stays
  while (!departures.compare_exchange_weak(one->next, one, std::memory_order_release, std::memory_order_relaxed)) {
  }
  // Refused when too many calls are pending: then the next departure sees this one off as well.
  Py_AddPendingCall(see_off, nullptr);
}

}  // namespace unimem::python
