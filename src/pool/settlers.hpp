#pragma once

#include <atomic>
#include <thread>

namespace unimem::detail {

/// The threads that are giving memory of a pool back, and may wait for its work to end first. Others wait for that
/// memory, and a kernel that does so while such a thread waits for the kernel's own queue would wait for ever: by this
/// it is found out (`LongWait`). Guarded by the pool's lock, but for `newest`.
class Settlers {
 public:
  /// One of them, on its stack.
  struct One {
    std::thread::id thread = std::this_thread::get_id();
    One* next = nullptr;
  };

  void enter(One& one) noexcept {
    one.next = first_;
    first_ = &one;
    tell();
  }

  /// Nothing where `forget` has come between.
  void leave(One const& one) noexcept {
    for (auto** at = &first_; *at != nullptr; at = &(*at)->next) {
      if (*at != &one) continue;
      *at = one.next;
      break;
    }
    tell();
  }

  /// In a forked child, which has none of them.
  void forget() noexcept {
    first_ = nullptr;
    tell();
  }

  /// The thread that entered last of those inside; no thread if there is none.
  [[nodiscard]] std::atomic<std::thread::id> const& newest() const noexcept { return newest_; }

 private:
  void tell() noexcept {
    newest_.store(first_ != nullptr ? first_->thread : std::thread::id{}, std::memory_order_relaxed);
  }

  One* first_ = nullptr;
  std::atomic<std::thread::id> newest_{};
};

}  // namespace unimem::detail
