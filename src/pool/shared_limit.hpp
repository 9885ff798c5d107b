#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/detail/pages.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::detail {

/// A limit on what several pools reserve together. What is left of it is one number, from which memory is taken before
/// the driver is asked for it and to which it returns after the driver has it back: the sum is never exceeded, and
/// nothing that a pool has in its cache comes here.
///
/// Thread-safe. The lock is the innermost: it is held while one number changes, and, as a `Pause`, while pools say what
/// they have reserved, so that the sum of what they say is within the limit too.
class SharedLimit {
 public:
  /// `name` as in "limit reached on `name`".
  SharedLimit(std::string name, std::size_t bytes) : name_(std::move(name)), bytes_(bytes), left_(bytes) {}

  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    std::lock_guard const lock{mutex_};
    // What is left only grows meanwhile.
    if (bytes > left_.load(std::memory_order_relaxed)) return false;
    left_.fetch_sub(bytes, std::memory_order_release);  // who sees that less is left sees who has it (LimitShare::most)
    return true;
  }

  void give_back(std::size_t bytes) noexcept {
    left_.fetch_add(bytes, std::memory_order_relaxed);
    returns_.fetch_add(1, std::memory_order_release);  // with it what is left is seen
  }

  /// Bounds what is taken by `bytes` from now on; false, and nothing has changed, if more is taken already.
  [[nodiscard]] bool set(std::size_t bytes) noexcept {
    std::lock_guard const lock{mutex_};
    auto const before = bytes_.load(std::memory_order_relaxed);
    if (before - left_.load(std::memory_order_relaxed) > bytes) return false;
    left_.fetch_add(bytes - before, std::memory_order_relaxed);  // modulo the range: by less than is left, if lower
    bytes_.store(bytes, std::memory_order_relaxed);
    return true;
  }

  /// As long as it lives nothing is taken.
  using Pause = std::lock_guard<std::mutex>;
  [[nodiscard]] std::mutex& pausing() noexcept { return mutex_; }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t left() const noexcept { return left_.load(std::memory_order_acquire); }
  /// How often something has come back so far.
  [[nodiscard]] std::uint64_t returns() const noexcept { return returns_.load(std::memory_order_acquire); }
  [[nodiscard]] std::string_view name() const noexcept { return name_; }

 private:
  std::string const name_;
  std::atomic<std::size_t> bytes_;
  std::atomic<std::size_t> left_;
  std::atomic<std::uint64_t> returns_{0};
  std::mutex mutex_;
};

/// What one pool has of a limit that it shares with others. Thread-safe.
class LimitShare {
 public:
  /// Has the other pools give back what they have only cached, unless what they have in use leaves no room for `wanted`
  /// bytes of this one; false then. Pending work is waited for only if `may_wait`.
  using MakeRoom = std::function<bool(std::size_t wanted, bool may_wait)>;

  LimitShare(std::shared_ptr<SharedLimit> whole, MakeRoom make_room)
      : whole_(std::move(whole)), make_room_(std::move(make_room)) {}

  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    // In the order in which what it may have is never told too small: `most` reads the other way round.
    taken_.fetch_add(bytes, std::memory_order_relaxed);
    if (whole_->take(bytes)) return true;
    taken_.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }

  void give_back(std::size_t bytes) noexcept {
    whole_->give_back(bytes);
    // Here it may be told too small for a moment. Release: who sees this sees that something has come back (`returns`).
    taken_.fetch_sub(bytes, std::memory_order_release);
  }

  /// What the pool may reserve, as far as the others leave it; what they do meanwhile may change that at once.
  [[nodiscard]] std::size_t most() const noexcept {
    auto const left = whole_->left();
    auto const taken = taken_.load(std::memory_order_acquire);
    return left > std::numeric_limits<std::size_t>::max() - taken ? std::numeric_limits<std::size_t>::max()
                                                                  : taken + left;
  }

  [[nodiscard]] bool make_room(std::size_t wanted, bool may_wait) const { return make_room_(wanted, may_wait); }
  [[nodiscard]] SharedLimit& whole() const noexcept { return *whole_; }

  /// Throws the OutOfMemory of `bytes` that are not left, and counts it.
  [[noreturn]] void refuse(std::string where, std::size_t bytes);
  [[nodiscard]] std::uint64_t refusals() const noexcept { return refusals_.load(std::memory_order_relaxed); }
  /// Why.
  [[nodiscard]] std::string reason() const;

 private:
  std::shared_ptr<SharedLimit> const whole_;
  MakeRoom const make_room_;
  std::atomic<std::size_t> taken_{0};
  std::atomic<std::uint64_t> refusals_{0};
};

/// Gives back all that a pool has cached, for another that shares a limit with it, and waits for what other threads are
/// giving back just now; without `may_wait` only what no work is pending on, and for nothing.
void give_way(MemoryPool& pool, bool may_wait) noexcept;

/// The statistics of pools that share `limit`, what each has reserved at moments between which nothing was taken: their
/// sum is within it. In the same order for every call.
[[nodiscard]] std::vector<PoolStatistics> statistics_of(std::span<MemoryPool* const> pools, SharedLimit& limit);

/// Pages that are taken from a share before the source creates them, and are back there once it has them back.
class SharedPages final : public PageSource {
 public:
  /// Both outlive it.
  SharedPages(PageSource& source, LimitShare& share) noexcept : source_(source), share_(share) {}

  [[nodiscard]] std::size_t page_bytes() const noexcept override { return source_.page_bytes(); }
  [[nodiscard]] std::size_t piece_bytes(std::size_t bytes) const noexcept override {
    return source_.piece_bytes(bytes);
  }
  [[nodiscard]] AddressRange reserve(std::size_t bytes) override { return source_.reserve(bytes); }
  [[nodiscard]] AddressRange reserve_undumped(std::size_t bytes) override { return source_.reserve_undumped(bytes); }
  void give_up(AddressRange range) noexcept override { source_.give_up(range); }
  [[nodiscard]] Pages create_pages(std::size_t bytes) override;
  void free_pages(Pages pages) noexcept override;
  void map(AddressRange range, Pages pages) override { source_.map(range, pages); }
  [[nodiscard]] Pages unmap(AddressRange range) override { return source_.unmap(range); }
  void populate(AddressRange range) override;
  void discard(AddressRange range) override;
  [[nodiscard]] bool shift(AddressRange from, AddressRange to) override { return source_.shift(from, to); }

 private:
  /// `work()`, with so many bytes taken that stay so unless it throws.
  template <class Work>
  auto with(std::size_t bytes, Work const& work);

  PageSource& source_;
  LimitShare& share_;
};

}  // namespace unimem::detail
