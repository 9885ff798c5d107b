#pragma once

#include <unimem/core/export.hpp>

#include <chrono>
#include <memory>

namespace unimem {

class MemoryPool;

/// A thread that gives back what a pool has not used for a while, for programs that do not call it in their quiet
/// hours: `MemoryPool::trim_idle` at the end of every interval. What is not used goes after one to two of them.
/// Between, the pool works as it does without one.
///
/// The pool must outlive it. Destroying it ends the thread at once, but for a trim that is going on.
class UNIMEM_API IdleTrimmer {
 public:
  /// Throws InvalidArgument for an interval that is not positive, std::system_error if there is no thread to be had.
  IdleTrimmer(MemoryPool& pool, std::chrono::nanoseconds interval);
  IdleTrimmer(IdleTrimmer&&) noexcept;
  IdleTrimmer& operator=(IdleTrimmer&&) noexcept;
  ~IdleTrimmer();

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace unimem
