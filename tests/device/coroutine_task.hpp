#pragma once

#include <condition_variable>
#include <coroutine>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

namespace unimem {

/// The smallest coroutine a test can do with: it starts at once, in the thread that calls it, and its end can be waited
/// for from any other. Destroying the task destroys the coroutine, wherever it stands; it must not be running then.
///
/// A coroutine is a function with parameters here and never a lambda with captures, which would be gone before it ends.
class [[nodiscard]] Task {
 public:
  class promise_type;

  Task(Task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)), end_(std::move(other.end_)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (coroutine_) coroutine_.destroy();
  }

  /// Whether it has run to its end.
  [[nodiscard]] bool done() const {
    std::lock_guard const lock{end_->mutex};
    return end_->reached;
  }

  /// Blocks until it has run to its end, and throws what it threw.
  void get() const {
    std::unique_lock lock{end_->mutex};
    end_->changed.wait(lock, [&] { return end_->reached; });
    if (end_->failure) std::rethrow_exception(end_->failure);
  }

 private:
  /// Apart from the coroutine, which may be destroyed by whoever learns here that it has ended.
  struct End {
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false;
    std::exception_ptr failure;
  };

  Task(std::coroutine_handle<> coroutine, std::shared_ptr<End> end) : coroutine_(coroutine), end_(std::move(end)) {}

  std::coroutine_handle<> coroutine_;
  std::shared_ptr<End> end_;
};

class Task::promise_type {
 public:
  Task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this), end_}; }
  std::suspend_never initial_suspend() noexcept { return {}; }
  void return_void() noexcept {}
  void unhandled_exception() noexcept { failure_ = std::current_exception(); }

  auto final_suspend() noexcept {
    struct Tells {
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> coroutine) const noexcept {
        auto const end = coroutine.promise().end_;  // the coroutine may be gone once the lock is
        auto failure = std::exchange(coroutine.promise().failure_, nullptr);
        std::lock_guard const lock{end->mutex};
        end->failure = std::move(failure);
        end->reached = true;
        end->changed.notify_all();
      }
      void await_resume() const noexcept {}
    };
    return Tells{};
  }

 private:
  std::shared_ptr<End> end_ = std::make_shared<End>();
  std::exception_ptr failure_;
};

}  // namespace unimem
