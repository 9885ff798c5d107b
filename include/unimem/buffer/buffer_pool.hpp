#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/core/size.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

namespace unimem {

/// How much a buffer pool keeps. Bytes are those of the buffers' elements, as `size_bytes()` counts them: a buffer that
/// has memory on two sides counts once.
struct BufferPoolLimits {
  std::size_t max_bytes = std::size_t{1} << 30;                            ///< of all kept buffers together
  std::size_t max_buffers = std::numeric_limits<std::size_t>::max();       ///< kept ones
  std::size_t max_buffer_bytes = std::numeric_limits<std::size_t>::max();  ///< larger ones are never kept
  /// Kept ones of each size class (`size_class` in <unimem/pool/statistics.hpp>).
  std::size_t max_buffers_per_class = std::numeric_limits<std::size_t>::max();
};

/// What of a buffer pool may be changed at any time.
struct BufferPoolSettings {
  BufferPoolLimits pageable{};
  /// Pinned memory is scarce, so it has limits of its own.
  BufferPoolLimits pinned{.max_bytes = std::size_t{256} << 20};
  /// Buffers kept longer than this are let go by a later acquire, release or trim. Zero: never by age.
  std::chrono::nanoseconds trim_interval{0};
  /// Overwrite all memory of a buffer with zeros when it is released, whether it is kept or not: what one owner wrote
  /// never reaches another. The memory it has at that time, that is: what was evicted or released from it before went
  /// back to its pool as it was.
  bool zero_on_release = false;
};

/// What a buffer pool is made with.
struct BufferPoolOptions {
  BufferPoolSettings settings{};
  MemoryManager* manager = nullptr;  ///< where memory comes from; null: default_manager()
  Device* device = nullptr;          ///< the buffers' default device; null: default_device()
  std::string name = "pooled";       ///< of every buffer, in errors and reports
  /// The clock ages are measured with; for tests. Default: std::chrono::steady_clock. Called with no lock held, and
  /// only if there is a trim_interval; must be thread-safe and must not throw.
  std::function<std::chrono::steady_clock::time_point()> clock{};
};

/// What a buffer pool has done. Invariants: `hits + misses` is the number of acquires; `released` is `let_go` and what
/// was kept, which is `hits + evicted + pooled_buffers`.
struct BufferPoolStatistics {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t released = 0;
  /// Released and not kept: beyond a limit, resized, in part still leased or mapped, or for want of host memory.
  std::uint64_t let_go = 0;
  std::uint64_t evicted = 0;       ///< kept, and let go since: to make room, by age, by `trim`, `clear` or lower limits
  std::uint64_t refused = 0;       ///< releases of what this pool has not lent
  std::size_t active_buffers = 0;  ///< lent, and neither released nor destroyed
  std::size_t pooled_buffers = 0;
  std::size_t pooled_bytes = 0;
  std::size_t peak_pooled_bytes = 0;

  /// Hits per acquire, 0 when there was none.
  [[nodiscard]] double hit_rate() const noexcept {
    auto const acquires = hits + misses;
    return acquires == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(acquires);
  }
};

namespace detail {

/// What two buffers must have in common for one to be lent in place of the other.
struct BufferKind {
  Name element;  ///< the element type, by whatever name its user knows it
  Shape shape;
  bool pinned = false;
  std::size_t bytes = 0;

  friend bool operator==(BufferKind const&, BufferKind const&) = default;
};

template <class T>
[[nodiscard]] BufferKind buffer_kind(Shape shape, bool pinned) {
  static Name const element{typeid(T).name()};
  auto const bytes = checked_multiply(shape.count(), sizeof(T), "count");
  return {element, std::move(shape), pinned, bytes};
}

}  // namespace detail

/// Whole buffers, kept for the next request of the same kind: same shape, same element type, pinned or not. What is
/// lent again is the same buffer, with its memory on whichever sides it had, so that neither host nor device memory has
/// to be asked for. Its contents are not cleared, its state is `uninitialized` until it is touched, and nothing of its
/// earlier use shows: no dirty flags, failures, advice or counts. Work of its earlier owner may still be pending on it;
/// the new owner's goes behind that. (After the memory pool of the UnifiedBuffer guide.)
///
///     auto batch = pool.acquire<float>({1000});
///     batch.copy_from(data);
///     pool.release(batch);
///
/// Beyond its limits a pool lets go of what it has kept longest, never of what is lent. Of a buffer that is released
/// while leases, mappings or slices of it live, their holders keep the memory: it is not lent again. A buffer that is
/// destroyed and not released is no longer the pool's business. Under pressure the manager takes the device memory of
/// kept buffers first of all, which costs no copy.
///
/// A buffer goes back once, to the pool that lent it: anything else is InvalidArgument and changes nothing. It is a
/// ReleasedTwice for one of the last 64 that were had back, with the stacks of taking it and of giving it back first
/// where the manager captures stacks (`LeakOptions::stacks`): a kilobyte for each that is lent, and for those 64.
///
/// Thread-safe; nothing is allocated on devices, waited for or destroyed under its lock. To be destroyed after its
/// guards (`PooledBuffer`), with or without buffers lent, which stay valid.
class UNIMEM_API BufferPool {
 public:
  explicit BufferPool(BufferPoolOptions options = {});
  BufferPool(BufferPool const&) = delete;
  BufferPool& operator=(BufferPool const&) = delete;
  ~BufferPool();

  /// A buffer of `shape` elements: one that was released, the last first, or else a new one, not allocated yet. Throws
  /// as UnifiedBuffer's constructor.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> acquire(Shape const& shape, bool pinned = false) {
    auto kind = detail::buffer_kind<T>(shape, pinned);
    auto core = acquire_core(kind);
    return UnifiedBuffer<T>(std::move(kind.shape), std::move(core));
  }

  /// Takes a buffer back; it is empty afterwards, as if moved from. Waits for nothing. Throws InvalidArgument unless
  /// this pool has lent it and not had it back since (ReleasedTwice if it has): the buffer is then as it was. What
  /// zeroing or making it ready throws (UnsupportedOperation while launches with it are being captured): it is then
  /// neither lent nor kept.
  template <class T>
  void release(UnifiedBuffer<T>& buffer) {
    release_core(buffer.core_);
    static_cast<void>(UnifiedBuffer<T>(std::move(buffer)));  // and with it what it says of its shape
  }
  template <class T>
  void release(UnifiedBuffer<T>&& buffer) {  // NOLINT(*-rvalue-reference-param-not-moved): unless it is refused
    release(buffer);
  }

  /// Lets go of all kept buffers. Lent ones are not touched, and may still be released.
  void clear();
  /// Lets go of kept buffers, the oldest first, until they have at most `keep_bytes`, after those that are too old.
  /// Returns the bytes.
  std::size_t trim(std::size_t keep_bytes = 0);

  /// Takes effect at once: what is kept beyond lower limits is let go.
  void configure(BufferPoolSettings const& settings);
  [[nodiscard]] BufferPoolSettings settings() const;

  /// Of pageable and pinned buffers together (the peak: the sum of both peaks), or of one of the two.
  [[nodiscard]] BufferPoolStatistics stats() const;
  [[nodiscard]] BufferPoolStatistics stats(bool pinned) const;
  [[nodiscard]] std::size_t pool_size() const;    ///< kept buffers
  [[nodiscard]] std::size_t total_bytes() const;  ///< of their elements

  /// Throws std::logic_error unless every invariant of BufferPoolStatistics and of the shelves holds. A walk; for
  /// tests.
  void validate() const;

  // For callers without a type of their own, such as other languages.

  [[nodiscard]] std::shared_ptr<BufferCore> acquire_core(detail::BufferKind const& kind);
  /// `core` is null afterwards, unless it was refused: then it is as it was.
  void release_core(std::shared_ptr<BufferCore>& core);

 private:
  template <class>
  friend class PooledBuffer;

  /// For destructors: what fails is reported to the log.
  static void report(std::exception const& failure) noexcept;
  template <class T>
  [[nodiscard]] static bool holds(UnifiedBuffer<T> const& buffer) noexcept {
    return buffer.core_ != nullptr;
  }

  struct State;
  /// Throws UnsupportedOperation in a forked child whose parent made this.
  [[nodiscard]] State& state() const;

  std::unique_ptr<State> state_;
};

/// A buffer of a pool that goes back by itself: at the end of its scope, also by an exception. Move-only. The pool must
/// outlive it.
///
///     PooledBuffer<float> batch{pool, {1000}};
///     batch->copy_from(data);
template <class T>
class PooledBuffer {
 public:
  PooledBuffer(BufferPool& pool, Shape const& shape, bool pinned = false)
      : pool_(&pool), buffer_(pool.acquire<T>(shape, pinned)) {}
  PooledBuffer(PooledBuffer&& other) noexcept = default;
  PooledBuffer& operator=(PooledBuffer&& other) noexcept {
    if (this != &other) {
      end();
      pool_ = other.pool_;
      buffer_ = std::move(other.buffer_);
    }
    return *this;
  }
  ~PooledBuffer() { end(); }

  [[nodiscard]] UnifiedBuffer<T>& operator*() noexcept { return buffer_; }
  [[nodiscard]] UnifiedBuffer<T> const& operator*() const noexcept { return buffer_; }
  [[nodiscard]] UnifiedBuffer<T>* operator->() noexcept { return &buffer_; }
  [[nodiscard]] UnifiedBuffer<T> const* operator->() const noexcept { return &buffer_; }

  /// Gives the buffer back now; throws as `BufferPool::release`. The guard is then empty. Idempotent.
  void release() {
    if (BufferPool::holds(buffer_)) pool_->release(buffer_);
  }

 private:
  void end() noexcept {
    try {
      release();
    } catch (std::exception const& failure) {
      BufferPool::report(failure);
    }
  }

  BufferPool* pool_;
  UnifiedBuffer<T> buffer_;
};

/// The pool used when none is named: of the default manager, on the default device. Lives as long as the process.
[[nodiscard]] UNIMEM_API BufferPool& default_buffer_pool();

}  // namespace unimem
