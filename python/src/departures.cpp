#include "departures.hpp"

#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "gil.hpp"

namespace unimem::python {
namespace {

struct Departures {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};

Departures& departures() {
  static auto* const all = new Departures;  // NOLINT(cppcoreguidelines-owning-memory): used until the process is gone
  return *all;
}

int see_off(void* /*unused*/) {
  std::vector<PyObject*> leaving;
  {
    std::lock_guard const lock{departures().mutex};
    leaving.swap(departures().objects);
  }
  for (auto* const object : leaving) Py_DECREF(object);
  return 0;
}

}  // namespace

void depart(PyObject* object) noexcept {
  if (Ending::begun() || Py_IsInitialized() == 0) return;
  try {
    std::lock_guard const lock{departures().mutex};
    departures().objects.push_back(object);
  } catch (std::bad_alloc const&) {
    return;  // without memory for a pointer the object stays
  }
  // Refused when too many calls are pending: then the next departure sees this one off as well.
  Py_AddPendingCall(see_off, nullptr);
}

}  // namespace unimem::python
