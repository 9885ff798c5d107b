#pragma once

#include <unimem/core/export.hpp>

#include <chrono>
#include <memory>

namespace unimem {

class MemoryPool;

/// A thread that gives back what a pool has not used for a while, for programs that do not call it in their quiet
/// hours: `MemoryPool::trim_idle` at the end of every interval. What is not used goes after one to two of them.
/// Between, the pool works as it does without a keeper.
///
/// The pool must outlive it. Destroying it ends the thread at once, but for a trim that is going on.
class UNIMEM_API PoolKeeper {
 public:
  /// Throws InvalidArgument for an interval that is not positive, std::system_error if there is no thread to be had.
  PoolKeeper(MemoryPool& pool, std::chrono::nanoseconds interval);
  PoolKeeper(PoolKeeper&&) noexcept;
  PoolKeeper& operator=(PoolKeeper&&) noexcept;
  ~PoolKeeper();

 private:
  class Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace unimem
