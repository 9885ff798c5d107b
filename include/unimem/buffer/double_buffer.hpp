#pragma once

#include <unimem/buffer/options.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/detail/one_process.hpp>
#include <unimem/core/export.hpp>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <source_location>

namespace unimem {

namespace detail {

/// Whose turn it is with which of two buffers: what DoubleBuffer is without its elements. Buffers are handed over by
/// number, 0 and 1; the thread that publishes or releases one is done with it on the host, and nothing else is waited
/// for.
class UNIMEM_API BufferTurns {
 public:
  BufferTurns() = default;
  BufferTurns(BufferTurns const&) = delete;
  BufferTurns& operator=(BufferTurns const&) = delete;

  [[nodiscard]] std::optional<std::size_t> take_back(bool wait);
  void publish();
  [[nodiscard]] std::optional<std::size_t> take_front(bool wait);
  void release();
  void swap();
  void close() noexcept;
  [[nodiscard]] bool closed() const noexcept;

 private:
  struct State {
    mutable std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t published = 0;  ///< the next one to fill is this one, modulo two
    std::uint64_t released = 0;   ///< the next one to read is this one; never ahead of `published`, nor two behind
    bool filling = false;         ///< the producer has the back
    bool reading = false;         ///< the consumer has the front
    bool closed = false;

    [[nodiscard]] bool back_free() const noexcept { return published - released < 2; }
    [[nodiscard]] bool front_there() const noexcept { return published != released; }
  };

  [[nodiscard]] State& state() { return state_.get("using a double buffer"); }
  static void check(bool taken, char const* which, char const* required);

  OneProcess<State> state_;
};

}  // namespace detail

/// Two buffers by turns: while a consumer reads the one, a producer fills the other. Everything that is published is
/// seen, once and in order, and never half-written. (After the double buffering pattern of the UnifiedBuffer guide.)
///
///     while (auto* back = frames.back()) {         while (auto const* front = frames.front()) {
///       read_frame(back->host_overwrite());          launch(queue, sum, Range{n}, read(*front), write(result));
///       frames.publish();                            frames.release();
///     }                                            }
///
/// Work need not have ended when a buffer is handed over. A kernel that fills the back may still run when it is
/// published, and one that reads the front when it is released: the next user is ordered behind it by the buffer
/// itself, on the device if it works there, and waits only if it looks from the host. `back` and `front` themselves
/// wait for the other side's call and never for a device. Work that failed tells the next access to its bytes: a
/// front that a failed kernel filled throws when it is read; the turns go on.
///
/// Thread-safe between one producer, which calls `back`, `try_back` and `publish`, and one consumer, which calls
/// `front`, `try_front` and `release`, each on one thread at a time; they may be the same thread, which then should use
/// `swap`, since it would wait for itself. `close` and `closed` may be called by any thread. A buffer is used between
/// `back` and `publish`, or `front` and `release`, and at no other time; asynchronous host copies (`copy_to_async`)
/// that touch it included. Neither movable nor copyable. To be destroyed when no thread is in a call; device work may
/// still be pending. In a forked child a parent's is closed: everything else is UnsupportedOperation.
template <class T>
class DoubleBuffer {
 public:
  /// Two buffers of `shape` elements with the same options, not allocated yet. Throws as UnifiedBuffer's constructor.
  explicit DoubleBuffer(Shape const& shape, BufferOptions const& options = {},
                        std::source_location const& site = std::source_location::current())
      : buffers_{UnifiedBuffer<T>(shape, options, site), UnifiedBuffer<T>(shape, options, site)} {}

  /// The buffer to fill, once the consumer has released it; null when closed. The same one until it is published. It
  /// holds what was published two turns ago: a producer that replaces all of it says so (`host_overwrite`, `write(…)`),
  /// and nothing is copied.
  [[nodiscard]] UnifiedBuffer<T>* back() { return at(turns_.take_back(true)); }
  /// Likewise, and null too while the consumer has not released it. Never blocks.
  [[nodiscard]] UnifiedBuffer<T>* try_back() { return at(turns_.take_back(false)); }

  /// Hands the back over to the consumer. Once closed it does nothing: there is no consumer. Throws InvalidArgument
  /// unless `back` was called before.
  void publish() { turns_.publish(); }

  /// The oldest buffer that was published and not released, once there is one; null when closed and all have been seen.
  /// The same one until it is released.
  [[nodiscard]] UnifiedBuffer<T> const* front() { return at(turns_.take_front(true)); }
  /// Likewise, and null too while there is none. Never blocks.
  [[nodiscard]] UnifiedBuffer<T> const* try_front() { return at(turns_.take_front(false)); }

  /// Gives the front back to be filled. Throws InvalidArgument unless `front` was called before.
  void release() { turns_.release(); }

  /// For one thread that is both: releases the front, looked at or not, and publishes the back, which `front` gives
  /// next. Never blocks, and neither does the `back` or `front` behind it. Throws InvalidArgument, and does neither,
  /// unless `back` was called before.
  void swap() { turns_.swap(); }

  /// Ends it: from now on `back` is null, and `front` is when what was published before has been seen. Called by the
  /// producer when there is no more, or by a consumer that wants no more. Wakes all waiting threads. Idempotent.
  void close() noexcept { turns_.close(); }
  [[nodiscard]] bool closed() const noexcept { return turns_.closed(); }

 private:
  [[nodiscard]] UnifiedBuffer<T>* at(std::optional<std::size_t> index) noexcept {
    return index ? &buffers_[*index] : nullptr;
  }

  std::array<UnifiedBuffer<T>, 2> buffers_;
  detail::BufferTurns turns_;
};

}  // namespace unimem
