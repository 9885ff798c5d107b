#pragma once

#include <pthread.h>

#include <chrono>

namespace unimem::detail {

/// A lock in memory that several processes map. It outlives its holder: of a process that ends while it holds it, the
/// next one that takes it learns so, and goes on from what that one left. Of trivial layout; all bytes zero is no lock.
class SharedLock {
 public:
  SharedLock() = default;
  SharedLock(SharedLock const&) = delete;
  SharedLock& operator=(SharedLock const&) = delete;
  ~SharedLock() = default;  // the memory goes, and the lock with it

  /// Once, by the process that makes the memory. Throws std::system_error.
  void make();

  enum class Taken {
    yes,
    after_death,  ///< its holder ended: what it guards may be half changed
    no,           ///< its holder has kept it for that long: it was stopped, perhaps
  };
  [[nodiscard]] Taken take(std::chrono::milliseconds patience) noexcept;
  void release() noexcept;

 private:
  ::pthread_mutex_t mutex_;
};

}  // namespace unimem::detail
