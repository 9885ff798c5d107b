#include <unimem/core/error.hpp>
#include <unimem/device/external_work.hpp>

#include "core/fork.hpp"
#include "device/queue_control.hpp"
#include "device/worker_threads.hpp"

#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace unimem {

namespace {

using detail::QueueControl;

/// Control blocks are never freed: those whose work has ended serve again, one piece of work at a time, so that a
/// process has as many as it had pieces of work at once.
class IdleControls {
 public:
  QueueControl& take() {
    std::lock_guard const lock{mutex_};
    if (!idle_.empty()) {
      auto* const control = idle_.back();
      idle_.pop_back();
      return *control;
    }
    idle_.reserve(++made_);  // so that to give one back takes no memory
    return QueueControl::create_external();
  }

  void give_back(QueueControl& control) noexcept {
    std::lock_guard const lock{mutex_};
    idle_.push_back(&control);
  }

 private:
  std::mutex mutex_;
  std::vector<QueueControl*> idle_;
  std::size_t made_ = 0;
};

IdleControls& idle_controls() {
  static constinit detail::PerProcess<IdleControls> of_this_process;
  return of_this_process.get();
}

}  // namespace

ExternalWork::ExternalWork() : control_(nullptr) {
  if (detail::is_forked_child()) {
    throw UnsupportedOperation("work of others", "a forked child process", "what carries it out stayed in the parent");
  }
  control_ = &idle_controls().take();
  event_ = control_->submit();
}

ExternalWork& ExternalWork::operator=(ExternalWork&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  control_ = std::exchange(other.control_, nullptr);
  event_ = std::exchange(other.event_, {});
  return *this;
}

ExternalWork::~ExternalWork() {
  abandon();
}

void ExternalWork::succeed() noexcept {
  finish(nullptr);
}

void ExternalWork::fail(std::exception_ptr failure, Began began) noexcept {
  if (control_ == nullptr) return;
  if (began == Began::no) {
    try {
      control_->skip(event_.ticket());
    } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch)
      // Then it counts as begun, and what it was to write as lost.
    }
  }
  finish(std::move(failure));
}

void ExternalWork::finish(std::exception_ptr failure) noexcept {
  if (control_ == nullptr || detail::is_forked_child()) return;
  auto& control = *std::exchange(control_, nullptr);
  control.finish(event_.ticket(), std::move(failure));
  idle_controls().give_back(control);
}

void ExternalWork::abandon() noexcept {
  if (control_ == nullptr) return;
  finish(std::make_exception_ptr(
      UnsupportedOperation("work of others", "the code that began it", "it was given up before its end was told")));
}

}  // namespace unimem
