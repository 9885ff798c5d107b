#include "process/shared_lock.hpp"

#include "core/sanitizers.hpp"

#include <cerrno>
#include <ctime>
#include <system_error>
#include <thread>

namespace unimem::detail {
namespace {

/// Waits for a lock that is taken. Returns as pthread_mutex_trylock does.
int await(::pthread_mutex_t& mutex, std::chrono::milliseconds patience) noexcept {
  using std::chrono::system_clock;
  // The clock that this function goes by may be set: a wait is longer or shorter then, and ends.
  auto const until = system_clock::now() + patience;
  if constexpr (under_thread_sanitizer) {
    // It does not know that a timed lock, too, is taken after a death.
    int taken = EBUSY;
    while ((taken = ::pthread_mutex_trylock(&mutex)) == EBUSY && system_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return taken;
  }
  auto const whole = std::chrono::floor<std::chrono::seconds>(until);
  ::timespec const deadline{system_clock::to_time_t(whole), std::chrono::nanoseconds(until - whole).count()};
  return ::pthread_mutex_timedlock(&mutex, &deadline);
}

}  // namespace

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
  if (taken == EBUSY) taken = await(mutex_, patience);
  if (taken == 0) return Taken::yes;
  if (taken != EOWNERDEAD) return Taken::no;
  ::pthread_mutex_consistent(&mutex_);
  return Taken::after_death;
}

void SharedLock::release() noexcept {
  ::pthread_mutex_unlock(&mutex_);
}

}  // namespace unimem::detail
