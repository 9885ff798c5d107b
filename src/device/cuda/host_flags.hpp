#pragma once

#include "device/cuda/pinned_stock.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace unimem::detail::cuda {

/// Words of pinned memory that the host raises and streams wait for: how a stream waits for work of other backends
/// without holding up a thread. Words are kept for good, and used again. Thread-safe.
class HostFlags {
  using Words = PinnedStock<std::uint32_t>;

 public:
  /// One word, 0 when it is taken. It goes back when the last reference goes: one is with the work that raises it, one
  /// with the command that waits for it.
  class Flag {
   public:
    explicit Flag(Words::Taken word) noexcept : word_(std::move(word)) {
      std::atomic_ref{*word_}.store(0, std::memory_order_relaxed);  // the driver orders it before the stream's wait
    }

    /// Lets the stream go on. Release: what the stream does then sees what was written before.
    void raise() noexcept { std::atomic_ref{*word_}.store(1, std::memory_order_release); }

    /// The address that the stream waits at. Host and GPU share it (unified addressing).
    [[nodiscard]] DevicePointer address() const noexcept { return reinterpret_cast<DevicePointer>(word_.get()); }

   private:
    Words::Taken word_;
  };

  HostFlags(ContextRef const& gpu, Health& health) noexcept : words_(gpu, health, 1, words_at_once) {}

  /// The context is current. Throws DeviceError if the driver has no pinned memory left.
  [[nodiscard]] std::shared_ptr<Flag> take();

 private:
  static constexpr std::size_t words_at_once = 1024;

  Words words_;
};

}  // namespace unimem::detail::cuda
