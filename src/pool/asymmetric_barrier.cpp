#include "pool/asymmetric_barrier.hpp"

#include <exception>

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace unimem::detail {

#if defined(__linux__)

namespace {

bool membarrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

}  // namespace

bool barriers_are_asymmetric() noexcept {
  static bool const asymmetric =
      membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  return asymmetric;
}

void heavy_barrier() noexcept {
  // A process that has registered, or was forked from one that has, is not refused. One that were would go on with
  // memory that two threads believe to be theirs.
  if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) std::terminate();
}

#else

bool barriers_are_asymmetric() noexcept {
  return false;
}

void heavy_barrier() noexcept {
  std::terminate();  // no thread may have come so far
}

#endif

}  // namespace unimem::detail
