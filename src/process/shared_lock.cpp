#include "process/shared_lock.hpp"

#include <cerrno>
#include <ctime>
#include <system_error>

namespace unimem::detail {

void SharedLock::make() {
  ::pthread_mutexattr_t attributes;
  int failed = ::pthread_mutexattr_init(&attributes);
  if (failed == 0) failed = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  if (failed == 0) failed = ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (failed == 0) failed = ::pthread_mutex_init(&mutex_, &attributes);
  ::pthread_mutexattr_destroy(&attributes);
  if (failed != 0) throw std::system_error(failed, std::generic_category(), "a lock for several processes");
}

SharedLock::Taken SharedLock::take(std::chrono::milliseconds patience) noexcept {
  int taken = ::pthread_mutex_trylock(&mutex_);
  if (taken == EBUSY) {
    using namespace std::chrono;
    // The clock that this function goes by may be set: a wait is longer or shorter then, and ends.
    auto const until = system_clock::now() + patience;
    auto const whole = floor<seconds>(until);
    ::timespec const deadline{system_clock::to_time_t(whole), duration_cast<nanoseconds>(until - whole).count()};
    taken = ::pthread_mutex_timedlock(&mutex_, &deadline);
  }
  if (taken == 0) return Taken::yes;
  if (taken != EOWNERDEAD) return Taken::no;
  ::pthread_mutex_consistent(&mutex_);
  return Taken::after_death;
}

void SharedLock::release() noexcept {
  ::pthread_mutex_unlock(&mutex_);
}

}  // namespace unimem::detail
