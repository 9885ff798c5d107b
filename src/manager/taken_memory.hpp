#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace unimem::detail {

/// What operations in progress have taken of a device's memory. Its holder may not be known yet, so that it cannot be
/// asked back, and there may be some when they have ended. Thread-safe.
class TakenMemory {
 public:
  // Release: a thread that sees another number of times sees the sum of then.
  void add(std::size_t bytes) noexcept {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    times_.fetch_add(1, std::memory_order_release);
  }
  /// Release: a thread that sees the sum fall also sees the memory's holder.
  void subtract(std::size_t bytes) noexcept { bytes_.fetch_sub(bytes, std::memory_order_release); }

  /// An attempt to take some. It counts from before the pool has given it: between the two it is in use and has no
  /// holder.
  class Attempt {
   public:
    Attempt(TakenMemory* on, std::size_t bytes) noexcept : on_(on), bytes_(bytes) {
      // Acquire: what the pool does follows. Release, as `subtract`: the sum tells of all that came before.
      if (on_ != nullptr) on_->bytes_.fetch_add(bytes_, std::memory_order_acq_rel);
    }
    Attempt(Attempt const&) = delete;
    Attempt& operator=(Attempt const&) = delete;
    ~Attempt() {
      if (on_ != nullptr) on_->subtract(bytes_);
    }

   private:
    TakenMemory* on_;
    std::size_t bytes_;
  };

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_acquire); }
  /// How often some was taken: another number tells that it may have come and gone.
  [[nodiscard]] std::uint64_t times() const noexcept { return times_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::size_t> bytes_{0};
  std::atomic<std::uint64_t> times_{0};
};

/// One operation's part of that. Until the operation ends, or releases all, the memory's holder is not known elsewhere.
class TakenByOperation {
 public:
  TakenByOperation() = default;
  TakenByOperation(TakenByOperation const&) = delete;
  TakenByOperation& operator=(TakenByOperation const&) = delete;
  ~TakenByOperation() { clear(); }

  /// The operation has taken so much there.
  void add(TakenMemory& on, std::size_t bytes);
  [[nodiscard]] std::size_t of(TakenMemory const& on) const noexcept;
  void clear() noexcept {
    if (first_.on != nullptr) clear_all();
  }

 private:
  struct Part {
    TakenMemory* on = nullptr;
    std::size_t bytes = 0;
  };

  void clear_all() noexcept;

  Part first_;                ///< on the device it works with
  std::vector<Part> beside_;  ///< on others
};

}  // namespace unimem::detail
