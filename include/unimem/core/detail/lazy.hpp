#pragma once

#include <atomic>
#include <memory>
#include <mutex>

namespace unimem::detail {

/// An object that is made when it is first asked for, and is there from then on: asking for it again is one load.
///
/// A maker that throws has made nothing, and the next caller tries again. That is what std::call_once promises, and
/// some runtimes do not keep: after an exception no thread gets through pthread_once any more under ThreadSanitizer,
/// and in some C libraries. Thread-safe; the maker runs under a lock and must not ask for the same object.
template <class T>
class Lazy {
 public:
  /// `make` returns a std::unique_ptr<T>, not null.
  template <class Make>
  [[nodiscard]] T& get(Make const& make) {
    if (auto* const there = there_.load(std::memory_order_acquire)) return *there;
    std::lock_guard const lock{making_};
    if (!made_) {
      made_ = make();
      there_.store(made_.get(), std::memory_order_release);  // what was made is seen with it
    }
    return *made_;
  }

  /// Null as long as it has not been made, also while it is being made.
  [[nodiscard]] T* find() const noexcept { return there_.load(std::memory_order_acquire); }

 private:
  std::atomic<T*> there_{nullptr};
  std::mutex making_;
  std::unique_ptr<T> made_;
};

}  // namespace unimem::detail
