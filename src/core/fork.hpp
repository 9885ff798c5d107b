#pragma once

#include <unimem/core/detail/one_process.hpp>

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

// What the child of a `fork` without `exec` may do with what it inherits: the library's one policy.
//
// The child has the thread that forked and no other. A lock that another thread of the parent held stays held there,
// and what that lock guards may be half changed. So the library takes no lock over a fork, and a child takes none of
// its parent's:
//
// - what a process has one of is made anew in the child, at its first use there (`PerProcess`);
// - an object that the parent made knows so (`MadeHere`), or its state does (`OneProcess`): its functions throw
//   UnsupportedOperation, its destructor gives nothing back;
// - work that the parent has queued is not carried out, and no queue is made (`is_forked_child`), since the threads and
//   drivers behind queues stayed in the parent;
// - bytes of a parent's buffer that are current on the host are read and written where they are, unless a thread of the
//   parent's was in the middle of an operation on that buffer (`ForkableMutex`).

namespace unimem::detail {

class Fork {
 public:
  /// How many forks lie between the process that loaded the library and this one. A load.
  [[nodiscard]] static unsigned depth() noexcept { return forks_so_far.load(std::memory_order_relaxed); }

  /// Calls `what()` at the start of every child from now on, on its one thread. It takes no lock. It is static, and
  /// there is no end to it. Thread-safe.
  class Hook {
   public:
    explicit Hook(void (*what)() noexcept) noexcept;
    Hook(Hook const&) = delete;
    Hook& operator=(Hook const&) = delete;

   private:
    friend class Fork;
    void (*what_)() noexcept;
    Hook const* before_;
  };

 private:
  static void begin_child() noexcept;

  static bool const registered;
  static std::atomic<unsigned> forks_so_far;  ///< changed only while its process has one thread
  /// The latest. Only grows, by a compare-and-swap: a child finds them whole, whatever its parent's threads were doing.
  static std::atomic<Hook const*> hooks;
};

/// Part of what a child must not touch when it inherits it: tells the process that made it from others.
class MadeHere {
 public:
  /// Whether an ancestor of this process made it.
  [[nodiscard]] bool inherited() const noexcept { return depth_ != Fork::depth(); }
  /// `what`: what is asked of it, as in "allocating from a pool".
  void require(std::string_view what) const {
    if (inherited()) [[unlikely]]
      throw_inherited(what);
  }

 private:
  unsigned depth_ = Fork::depth();
};

/// One object for each process, made at its first use there. What a child inherits is neither used nor destroyed; nor
/// is this process's, unless `end` says so: static objects are used by destructors to the very end. Thread-safe;
/// several threads may make one at once, of which one stays.
template <class T>
class PerProcess {
 public:
  constexpr PerProcess() noexcept = default;
  PerProcess(PerProcess const&) = delete;
  PerProcess& operator=(PerProcess const&) = delete;
  ~PerProcess() = default;

  /// `make()`: another, as a std::unique_ptr.
  template <class Make>
  [[nodiscard]] T& get(Make const& make) {
    // Acquire: with the pointer what it points to is seen.
    auto* const latest = latest_.load(std::memory_order_acquire);
    if (latest != nullptr && !latest->made.inherited()) [[likely]]
      return *latest->object;
    return add(latest, make());
  }
  [[nodiscard]] T& get() {
    return get([] { return std::make_unique<T>(); });
  }
  /// Destroys this process's. It is not used any more.
  void end() noexcept {
    auto* const latest = latest_.exchange(nullptr, std::memory_order_acq_rel);
    if (latest != nullptr && !latest->made.inherited()) delete latest;  // NOLINT(cppcoreguidelines-owning-memory)
  }

 private:
  struct Instance {
    MadeHere made{};
    std::unique_ptr<T> object;
    Instance* before;  ///< the parent's: reachable, for leak checkers
  };

  T& add(Instance* latest, std::unique_ptr<T> object) {
    auto fresh = std::make_unique<Instance>(Instance{{}, std::move(object), latest});
    if (latest_.compare_exchange_strong(latest, fresh.get(), std::memory_order_acq_rel))
      return *fresh.release()->object;
    return *latest->object;  // another thread of this process was first
  }

  std::atomic<Instance*> latest_{nullptr};
};

}  // namespace unimem::detail
