#pragma once

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace unimem::detail::cuda {

/// Rows of `T` in pinned memory that the host and any GPU reach, which are taken and come back: made many at once when
/// none is left, and kept for good. Thread-safe; it outlives what was taken.
template <class T>
class PinnedStock {
  struct PutBack {
    PinnedStock* stock;
    void operator()(T* row) const noexcept { stock->put_back(row); }
  };

 public:
  /// A row, which goes back at the end of this.
  using Taken = std::unique_ptr<T, PutBack>;

  /// Of rows of so many, made so many rows at once.
  PinnedStock(ContextRef const& gpu, Health& health, std::size_t in_a_row, std::size_t rows_at_once) noexcept
      : gpu_(gpu), health_(health), in_a_row_(in_a_row), rows_at_once_(rows_at_once) {}

  /// The context is current. Throws DeviceError if the driver has no pinned memory left.
  [[nodiscard]] Taken take() {
    std::unique_lock lock{mutex_};
    while (free_.empty()) {
      // Without the lock: the driver may wait for work in there, whose end wants to put something back.
      lock.unlock();
      void* memory = nullptr;
      health_.check(gpu_.driver.cuMemHostAlloc(&memory, rows_at_once_ * in_a_row_ * sizeof(T),
                                               host_alloc_portable | host_alloc_device_map),
                    "cuMemHostAlloc");
      lock.lock();
      try {
        free_.reserve(made_ + rows_at_once_);  // so that nothing has to be had when a row goes back
      } catch (std::bad_alloc const&) {
        lock.unlock();
        health_.note(gpu_.driver.cuMemFreeHost(memory));
        throw;
      }
      made_ += rows_at_once_;
      for (std::size_t i = 0; i < rows_at_once_; ++i) free_.push_back(static_cast<T*>(memory) + i * in_a_row_);
    }
    Taken row{free_.back(), PutBack{this}};
    free_.pop_back();
    return row;
  }

 private:
  void put_back(T* row) noexcept {
    std::lock_guard const lock{mutex_};
    free_.push_back(row);
  }

  ContextRef const& gpu_;
  Health& health_;
  std::size_t const in_a_row_;
  std::size_t const rows_at_once_;
  std::mutex mutex_;
  std::vector<T*> free_;
  std::size_t made_ = 0;
};

}  // namespace unimem::detail::cuda
