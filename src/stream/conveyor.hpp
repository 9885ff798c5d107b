#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <vector>

namespace unimem::detail {

/// What the threads of a stream tell each other: which slots are free, which hold a chunk that is being computed, which
/// wait to be written, how much is finished, and that it is time to stop. A slot is its number.
///
/// Submitted slots go to the caller and computed ones to the writer in the order they came. Of the free ones the reader
/// gets the one freed last: its memory is warm, and a ring that is larger than the work needs never touches the rest.
/// Thread-safe; one lock, taken a few times per chunk.
class Conveyor {
 public:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  /// All of `slots` are free.
  explicit Conveyor(std::size_t slots);

  /// The next free slot, waiting for one; `none` when it is time to stop.
  [[nodiscard]] std::size_t take_free();

  /// The chunk in `slot` has been submitted.
  void submitted(std::size_t slot);

  /// The chunk in `slot` is on the host and may be written.
  void ready_to_write(std::size_t slot);

  /// The next slot to write, waiting for one; `none` when it is time to stop.
  [[nodiscard]] std::size_t take_to_write();

  /// All that was to be done with the chunk in `slot`, of `bytes` bytes, is done.
  void finished(std::size_t slot, std::size_t bytes);

  /// There is no chunk after those that were submitted.
  void submitted_all();

  /// What the caller waits for.
  struct News {
    std::size_t submitted = none;  ///< the next slot to wait for, if there is one
    std::uint64_t finished_bytes = 0;
    bool through = false;  ///< all chunks that there are are finished
  };
  /// Waits until there is a submitted slot or more than `known_bytes` bytes are finished, or all are, or it is time to
  /// stop; but no longer than `most`.
  [[nodiscard]] News wait_for_news(std::uint64_t known_bytes, std::chrono::milliseconds most);

  /// All threads are to stop. The first error is kept; a null one means that the caller asked to.
  void stop(std::exception_ptr error) noexcept;

  /// Relaxed: a word alone; the error is asked for under the lock.
  [[nodiscard]] bool stopping() const noexcept { return stopping_.load(std::memory_order_relaxed); }

  /// Whether it was asked to stop, and the first error, if that was the reason.
  [[nodiscard]] std::exception_ptr error() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> free_;
  std::deque<std::size_t> submitted_;
  std::deque<std::size_t> to_write_;
  std::uint64_t finished_bytes_ = 0;
  std::size_t under_way_ = 0;  ///< chunks submitted and not finished
  bool submitted_all_ = false;
  std::exception_ptr error_;
  /// Set under the lock, so that no waiter misses it; read without it where knowing soon is enough.
  std::atomic<bool> stopping_{false};
};

}  // namespace unimem::detail
