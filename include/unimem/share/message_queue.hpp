#pragma once

#include <unimem/core/detail/one_process.hpp>
#include <unimem/core/export.hpp>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

namespace unimem {

namespace detail {
/// Throws InvalidArgument for a queue that could hold nothing.
UNIMEM_API void check_queue_capacity(std::size_t capacity);
}  // namespace detail

/// Messages on their way from threads to threads, in order, at most so many at a time. What travels by it is small: of
/// data its reference, `BufferRef`, so that no byte of it is copied by being passed. Made for that, a lock and two
/// conditions: a message names work of microseconds and more, beside which a queue without locks gains nothing.
///
///     queue.send(registry().refer(id));               while (auto message = queue.receive()) {
///     …                                                 auto part = message->resolve<float>();
///     queue.close();                                    launch(scale, Range{part.size()}, readwrite(part), 2.0F);
///                                                     }
///
/// Every message that was taken is received once, by one receiver. Messages of one sender arrive in their order, and
/// whatever it did before sending has happened for the receiver. Any number of threads may send and receive; a wait
/// ends with the other side's call or with `close`. A capacity of 1 hands over one by one. Messages are moved under the
/// queue's lock, so moving one must not call the queue.
///
/// Neither movable nor copyable. To be destroyed, with or without messages, when no thread waits in it or is going to
/// call: a receiver of the last message may, though the sender's call has not returned yet. A queue for
/// replies can therefore be the asking thread's own. In a forked child a parent's is closed and empty, and sending and
/// receiving are UnsupportedOperation.
template <class T>
class MessageQueue {
  static_assert(std::is_nothrow_move_constructible_v<T>, "a message is taken or it is not");

 public:
  /// Room for `capacity` messages; memory is needed only for those on their way. Throws InvalidArgument for 0.
  explicit MessageQueue(std::size_t capacity) : capacity_(capacity) { detail::check_queue_capacity(capacity); }
  MessageQueue(MessageQueue const&) = delete;
  MessageQueue& operator=(MessageQueue const&) = delete;
  ~MessageQueue() = default;

  /// Waits for room, and puts the message in. False when the queue is closed, also while it waits: the message was not
  /// taken, and one that is passed to be moved is as it was.
  [[nodiscard]] bool send(T&& message) { return put(std::move(message), true); }
  [[nodiscard]] bool send(T const& message) { return send(T(message)); }
  /// The same without waiting: false too when there is no room.
  [[nodiscard]] bool try_send(T&& message) { return put(std::move(message), false); }
  [[nodiscard]] bool try_send(T const& message) { return try_send(T(message)); }

  /// Waits for a message. Nothing when the queue is closed and all that was in it has been received.
  [[nodiscard]] std::optional<T> receive() { return take(true); }
  /// The same without waiting: nothing too when there is none at the moment.
  [[nodiscard]] std::optional<T> try_receive() { return take(false); }

  /// Nothing more goes in; what is in it can still be received. Wakes all waiting threads. Idempotent.
  void close() noexcept {
    auto* const state = state_.find();
    if (state == nullptr) return;
    std::lock_guard const lock{state->mutex};
    state->closed = true;
    state->room.notify_all();
    state->news.notify_all();
  }
  [[nodiscard]] bool closed() const noexcept {
    auto const* const state = state_.find();
    if (state == nullptr) return true;
    std::lock_guard const lock{state->mutex};
    return state->closed;
  }

  /// Messages on their way; the next moment it may be another number.
  [[nodiscard]] std::size_t size() const noexcept {
    auto const* const state = state_.find();
    if (state == nullptr) return 0;
    std::lock_guard const lock{state->mutex};
    return state->messages.size();
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

 private:
  struct State {
    mutable std::mutex mutex;
    std::condition_variable room;  ///< senders wait for it
    std::condition_variable news;  ///< receivers do
    std::deque<T> messages;
    bool closed = false;
  };

  // Threads are woken under the lock: what is received may be the reason to destroy the queue, and no thread
  // may then still be about to touch it.

  bool put(T&& message, bool wait) {
    auto& state = state_.get("sending a message");
    auto const has_room = [&] { return state.messages.size() < capacity_; };
    std::unique_lock lock{state.mutex};
    if (wait) state.room.wait(lock, [&] { return state.closed || has_room(); });
    if (state.closed || !has_room()) return false;
    state.messages.push_back(std::move(message));  // either takes it or, without memory, leaves it
    state.news.notify_one();
    return true;
  }

  std::optional<T> take(bool wait) {
    auto& state = state_.get("receiving a message");
    std::unique_lock lock{state.mutex};
    if (wait) state.news.wait(lock, [&] { return state.closed || !state.messages.empty(); });
    std::optional<T> result;
    if (state.messages.empty()) return result;
    result.emplace(std::move(state.messages.front()));
    state.messages.pop_front();
    state.room.notify_one();
    return result;
  }

  std::size_t const capacity_;
  detail::OneProcess<State> state_;
};

}  // namespace unimem
