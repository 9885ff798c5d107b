#pragma once

#include "file/read_terms.hpp"
#include "file/retries.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>

namespace unimem::detail {

/// What a file system asks of a read past the page cache: multiples of these, which are powers of two.
struct DirectAlignment {
  std::size_t offset = 4096;  ///< of where it begins and ends in the file
  std::size_t memory = 4096;  ///< of the address
};

/// One read of a range of a file past the page cache, as requests of whole blocks: it hands out the requests, takes
/// their results and adds those up. It makes no system call itself.
///
/// Where the range begins or ends within a block of the file, and where its addresses do not fit, bytes come by way of
/// memory of this object's. `next`, `take` and `pass_on` may be called from several threads at once.
class BlockReads {
 public:
  /// docs/decisions/file-access.md.
  static constexpr std::size_t block_bytes = std::size_t{256} << 10;
  /// Requests under way at once.
  static constexpr std::size_t depth = 8;

  /// One request, and after it those for what it did not bring. It belongs to one thread at a time, and is used for one
  /// after the other.
  struct Block {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::byte* memory = nullptr;
    std::size_t done = 0;
    Attempts attempts;
    struct Free {
      void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, alignment); }
    };
    static constexpr std::align_val_t alignment{4096};
    std::unique_ptr<std::byte, Free> detour;  ///< memory of its own
    std::size_t detour_bytes = 0;

    [[nodiscard]] bool make_detour(std::size_t bytes) noexcept;
  };

  /// A failed request.
  struct Failure {
    int code = 0;  ///< errno's
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
  };

  /// `to` and `terms` outlive this.
  BlockReads(std::uint64_t offset, std::span<std::byte> to, DirectAlignment alignment, ReadTerms const& terms) noexcept;

  /// The next request. False: no more, since all are handed out, one has failed, the file has ended, or it is to stop.
  [[nodiscard]] bool next(Block& block) noexcept;

  /// Takes the system's result for `block`: how many bytes came, or an error's number below 0. True: the caller is to
  /// ask for the rest (bytes from `done` on).
  [[nodiscard]] bool take(Block& block, long result) noexcept;

  /// Whether bytes have come that can be passed on: all ahead of them have been.
  [[nodiscard]] bool has_news() const noexcept;
  /// Tells the caller of the read (`ReadTerms::arrived`) of them. For when the next requests are under way: it may take
  /// its time over them, as one who computes a checksum does.
  void pass_on() noexcept;

  /// Ends it, as if a request had failed.
  void fail(Failure failure) noexcept;

  /// After the last request: how many bytes there are from the beginning on, fewer than asked for only at the file's
  /// end (or if it was to stop).
  [[nodiscard]] std::size_t found() const noexcept;
  /// The failed request that is first in the file; code 0: none.
  [[nodiscard]] Failure const& failure() const noexcept { return failure_; }

 private:
  void end_at(std::uint64_t offset) noexcept;
  void keep_arrival(Block const& block) noexcept;
  [[nodiscard]] std::span<const std::byte> take_news() noexcept;

  [[nodiscard]] std::size_t step() const noexcept { return std::max(block_bytes, alignment_.offset); }

  std::uint64_t begin_, end_;
  std::span<std::byte> to_;
  DirectAlignment alignment_;
  ReadTerms const& terms_;
  bool fits_;  ///< addresses are aligned where the file's offsets are
  mutable std::mutex mutex_;
  std::uint64_t cursor_;
  std::uint64_t file_end_ = UINT64_MAX;  ///< as far as it has shown
  Failure failure_;
  std::map<std::uint64_t, std::uint64_t> arrivals_;  ///< ranges that came, and that were not passed on
  std::uint64_t told_;                               ///< where what was passed on ends
  std::mutex passing_on_;                            ///< locked before the other
};

}  // namespace unimem::detail
