#pragma once

#include <unimem/cluster/errors_returned.hpp>
#include <unimem/cluster/mpi_calls.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/external_work.hpp>
#include <unimem/device/queue.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

// Messages that are sent and received behind the caller's back. MPI has requests, and no call that tells of their end:
// one thread of this process asks for all of them.

namespace unimem::mpi::detail {

/// Which messages an operation is about: those of two operations that meet go in the order in which these were begun.
struct Channel {
  enum class Direction : bool { send, receive };
  Direction direction = Direction::send;
  MPI_Comm comm = MPI_COMM_NULL;
  int peer = MPI_ANY_SOURCE;
  int tag = MPI_ANY_TAG;

  [[nodiscard]] bool meets(Channel const& other) const noexcept {
    auto const same = [](int a, int b, int any) { return a == b || a == any || b == any; };
    return direction == other.direction && comm == other.comm && same(peer, other.peer, MPI_ANY_SOURCE) &&
           same(tag, other.tag, MPI_ANY_TAG);
  }
};

/// A message that is sent, or one that is waited for and received, in steps none of which block.
class PendingMessage {
 public:
  explicit PendingMessage(Channel channel) : channel_(channel), errors_(channel.comm) {}
  PendingMessage(PendingMessage const&) = delete;
  PendingMessage& operator=(PendingMessage const&) = delete;
  virtual ~PendingMessage() = default;

  /// MPI gets to know of it, or finds it: whether that has come to be. From then on another of its channel may.
  [[nodiscard]] virtual bool try_begin() = 0;
  /// After `try_begin` was true: whether all is done.
  [[nodiscard]] virtual bool try_end() = 0;
  /// Whether MPI has the buffer's memory.
  [[nodiscard]] virtual bool has_memory() const noexcept = 0;

  [[nodiscard]] Channel const& channel() const noexcept { return channel_; }
  [[nodiscard]] Event event() const noexcept { return work_.event(); }
  void succeed() noexcept { work_.succeed(); }
  void fail(std::exception_ptr failure) noexcept {
    work_.fail(std::move(failure), has_memory() ? ExternalWork::Began::yes : ExternalWork::Began::no);
  }

  bool has_begun = false;  ///< of Progress alone

 private:
  Channel const channel_;
  ErrorsReturned const errors_;
  ExternalWork work_;
};

/// Queues, each for one message at a time: a message waits there for what must end before it, and keeps no other
/// waiting. One of the cpu device has a thread once something had to be waited for.
class WaitingQueues {
 public:
  /// One of them, for as long as this lives.
  class Taken {
   public:
    explicit Taken(Device& device) : queue_(take(device)) {}
    Taken(Taken const&) = delete;
    Taken& operator=(Taken const&) = delete;
    ~Taken() { give_back(std::move(queue_)); }
    [[nodiscard]] Queue& operator*() const noexcept { return *queue_; }
    [[nodiscard]] Queue* operator->() const noexcept { return queue_.get(); }

   private:
    std::unique_ptr<Queue> queue_;
  };

  /// The idle ones live longer than static objects that are made from now on.
  static void outlive_caller() { idle(); }

 private:
  struct Idle {
    std::mutex mutex;
    std::vector<std::unique_ptr<Queue>> queues;
  };
  static Idle& idle() {
    static Idle of_this_process;
    return of_this_process;
  }
  static std::unique_ptr<Queue> take(Device& device) {
    {
      std::lock_guard const lock{idle().mutex};
      auto& queues = idle().queues;
      auto const found = std::ranges::find_if(queues, [&](auto const& one) { return &one->device() == &device; });
      if (found != queues.end()) {
        auto queue = std::move(*found);
        queues.erase(found);
        return queue;
      }
    }
    return std::make_unique<Queue>(device.create_queue());
  }
  static void give_back(std::unique_ptr<Queue> queue) noexcept {
    try {
      std::lock_guard const lock{idle().mutex};
      idle().queues.push_back(std::move(queue));
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): then it ends here, its work being done
    }
  }
};

/// The messages of this process that are under way, and the thread that carries them on while there are any. It calls
/// MPI as often as it can for a moment, then every so many microseconds, as long as nothing comes. At MPI_Finalize what
/// MPI has of them ends as it ends then, and what has not begun fails.
///
/// Thread-safe. No call of MPI under its lock blocks.
class Progress {
 public:
  static Progress& instance() {
    static Progress of_this_process;
    return of_this_process;
  }
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;
  ~Progress() { stop(AtEnd::of_process); }

  /// Behind all that came before. The thread looks after it from now on.
  void add(std::shared_ptr<PendingMessage> message) {
    std::lock_guard const lock{mutex_};
    messages_.push_back(std::move(message));
    waiting_.fetch_add(1, std::memory_order_relaxed);
    if (!thread_.joinable()) {
      end_with_mpi();
      thread_ = std::thread([this] { work(); });
    }
    there_are_some_.notify_one();
  }

  /// Does at once what can be done, on the caller's thread.
  void advance() {
    std::vector<Ended> ended;
    {
      std::lock_guard const lock{mutex_};
      sweep(ended);
    }
    tell(ended);
  }

  /// Whether a message of this channel that was begun now would pass one that was begun before.
  [[nodiscard]] bool would_pass(Channel const& channel) {
    // Relaxed: what another thread is about to begin has no order with this one's.
    if (waiting_.load(std::memory_order_relaxed) == 0) return false;
    std::lock_guard const lock{mutex_};
    return std::ranges::any_of(messages_,
                               [&](auto const& other) { return !other->has_begun && other->channel().meets(channel); });
  }

 private:
  struct Ended {
    std::shared_ptr<PendingMessage> message;
    std::exception_ptr failure;
  };

  Progress() {
    ErrorsReturned::outlive_caller();
    WaitingQueues::outlive_caller();
  }

  void work() {
    constexpr int patience = 200;  // of looks at which nothing has moved
    int idle = 0;
    std::unique_lock lock{mutex_};
    while (true) {
      there_are_some_.wait(lock, [&] { return is_stopping_ || !messages_.empty(); });
      if (is_stopping_) return;
      std::vector<Ended> ended;
      idle = sweep(ended) ? 0 : idle + 1;
      lock.unlock();
      tell(ended);
      ended.clear();
      if (idle < patience) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds{50});
      }
      lock.lock();
    }
  }

  /// One look at each, in their order. Whether anything has moved.
  bool sweep(std::vector<Ended>& ended) {
    bool moved = false;
    for (std::size_t i = 0; i < messages_.size();) {
      auto& message = *messages_[i];
      std::exception_ptr failure;
      bool is_over = false;
      try {
        if (!message.has_begun && !must_wait(i) && message.try_begin()) begun(message, moved);
        if (message.has_begun) is_over = message.try_end();
      } catch (...) {
        failure = std::current_exception();
        is_over = true;
        if (!message.has_begun) begun(message, moved);
      }
      if (!is_over) {
        ++i;
        continue;
      }
      moved = true;
      ended.push_back({std::move(messages_[i]), std::move(failure)});
      messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return moved;
  }
  void begun(PendingMessage& message, bool& moved) {
    moved = message.has_begun = true;
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  [[nodiscard]] bool must_wait(std::size_t index) const {
    auto const& channel = messages_[index]->channel();
    return std::any_of(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(index),
                       [&](auto const& earlier) { return !earlier->has_begun && earlier->channel().meets(channel); });
  }
  static void tell(std::vector<Ended>& ended) noexcept {
    for (auto& [message, failure] : ended) failure ? message->fail(failure) : message->succeed();
  }

  /// MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else.
  void end_with_mpi() {
    int key = MPI_KEYVAL_INVALID;
    auto const finalizes = [](MPI_Comm, int, void*, void*) -> int {
      instance().stop(AtEnd::of_mpi);
      return MPI_SUCCESS;
    };
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalizes, &key, nullptr), "MPI_Comm_create_keyval");
    check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
    MPI_Comm_free_keyval(&key);
  }

  /// Ends the thread, and what it has left: with MPI's help, or without it in a process that ends and has not called
  /// MPI_Finalize.
  enum class AtEnd : bool { of_mpi, of_process };
  void stop(AtEnd end) noexcept {
    {
      std::lock_guard const lock{mutex_};
      is_stopping_ = true;
    }
    there_are_some_.notify_one();
    if (thread_.joinable()) thread_.join();
    for (auto& message : std::exchange(messages_, {})) {
      std::exception_ptr failure;
      try {
        bool const is_left = end == AtEnd::of_process || !message->has_memory();
        if (is_left) throw UnsupportedOperation("a message", "MPI", "it had not ended when MPI or the process did");
        while (!message->try_end()) std::this_thread::yield();
      } catch (...) {
        failure = std::current_exception();
      }
      failure ? message->fail(failure) : message->succeed();
    }
  }

  std::mutex mutex_;
  std::condition_variable there_are_some_;
  std::vector<std::shared_ptr<PendingMessage>> messages_;
  std::atomic<std::size_t> waiting_{0};  ///< of them, those that have not begun
  std::thread thread_;
  bool is_stopping_ = false;
};

}  // namespace unimem::mpi::detail
