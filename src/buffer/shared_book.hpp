#pragma once

#include "core/fork.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "process/shared_ranges.hpp"

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {

/// The book of memory that processes share, and this process as one that takes part in it, from here to `leave`. It may
/// be looked at for longer. Thread-safe.
class SharedBook {
 public:
  /// Joins it, as one of `SharedBooks`. Throws UnsupportedOperation where `most_holders` processes live and hold it,
  /// and what SharedRanges throws. `name`: of the memory, for errors.
  [[nodiscard]] static std::shared_ptr<SharedBook> join(Segment memory, SharedRanges ranges, std::string const& name);
  SharedBook(SharedBook const&) = delete;
  SharedBook& operator=(SharedBook const&) = delete;

  [[nodiscard]] SharedRanges& ranges() noexcept { return ranges_; }
  [[nodiscard]] SharedRanges const& ranges() const noexcept { return ranges_; }
  [[nodiscard]] int descriptor() const noexcept { return memory_.descriptor(); }
  [[nodiscard]] SharedRanges::Holder self() const noexcept { return self_; }
  /// The same number: the same memory, taken part in twice.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  /// How many deaths there had been before.
  [[nodiscard]] std::uint64_t deaths_before() const noexcept { return deaths_before_; }

  void add_key(Peers::Key key);
  /// By which this process offers the memory, or did.
  [[nodiscard]] std::vector<Peers::Key> keys() const;

  void leave();

 private:
  SharedBook(Segment memory, SharedRanges ranges, std::string const& name);
  void join(std::string const& name);

  Segment const memory_;
  SharedRanges ranges_;
  std::atomic<SharedRanges::Holder> self_{0};  ///< 0: not yet one of them
  std::uint64_t identity_ = 0;
  std::uint64_t deaths_before_ = 0;
  mutable std::mutex mutex_;
  std::vector<Peers::Key> keys_;
};

/// All that this process takes part in. Thread-safe.
class SharedBooks {
 public:
  [[nodiscard]] static SharedBooks& of_this_process();
  /// Others take the end of this process for no death from now on. Called by `exit`; by whoever ends it otherwise, in
  /// good order.
  static void tell_of_the_end() noexcept;

  void add(std::shared_ptr<SharedBook> book);
  void remove(SharedBook const& book) noexcept;
  [[nodiscard]] std::vector<std::shared_ptr<SharedBook>> all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<SharedBook>> books_;
};

}  // namespace unimem::detail
