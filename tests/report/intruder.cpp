#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

// A library that leaves a trace wherever it is loaded, whatever it is asked for.

namespace {

[[gnu::constructor]] void leave_a_trace() {
  if (auto const* const path = std::getenv("INTRUDER_TRACE")) ::close(::open(path, O_WRONLY | O_CREAT, 0600));
}

}  // namespace
