#pragma once

#include "file/bus_guard.hpp"
#include "stream/input_file.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace unimem::detail {

/// Windows of a file in memory, one per chunk under way, so that no more than these are resident whatever the file's
/// size.
///
/// All windows lie in one reserved range of addresses, which makes one guarded region of them. Different windows may be
/// used by different threads at once; work on a window must have ended before it is closed or opened again.
class MappedInput {
 public:
  /// Room for `windows` windows of up to `window_bytes` bytes. `input` must outlive this. Throws IoError.
  MappedInput(InputFile const& input, std::size_t windows, std::size_t window_bytes);
  MappedInput(MappedInput const&) = delete;
  MappedInput& operator=(MappedInput const&) = delete;
  ~MappedInput();

  /// The element bytes `[offset, offset + bytes)` of the input, mapped and brought into memory; `stop` is asked now and
  /// then whether to give up on the latter. Pages that the system cannot bring are read first, with `retries`. Throws
  /// IoError.
  [[nodiscard]] std::span<std::byte> open(std::size_t window, std::uint64_t offset, std::size_t bytes, Retries& retries,
                                          std::function<bool()> const& stop);

  /// Lets the pages go.
  void close(std::size_t window);

  /// Throws IoError if the file turned out to be shorter than it was: what was read from a window may then be zeros.
  void check() const;

 private:
  void read_through(std::uint64_t offset, std::size_t bytes, Retries& retries) const;
  [[nodiscard]] std::byte* address_of(std::size_t window) const noexcept { return base_ + window * stride_; }

  InputFile const& input_;
  std::size_t page_bytes_;
  std::size_t stride_;  ///< from window to window
  std::size_t reserved_;
  std::byte* base_;  ///< of the first window: a multiple of a huge page
  std::unique_ptr<GuardedRegion> guard_;
};

}  // namespace unimem::detail
