#pragma once

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace unimem::detail::cuda {

/// Words of pinned memory that the host raises and streams wait for: how a stream waits for work of other backends
/// without holding up a thread. Words are kept for good, and used again. Thread-safe.
class HostFlags {
 public:
  /// One word, 0 when it is taken. It goes back when the last reference goes: one is with the work that raises it, one
  /// with the command that waits for it.
  class Flag {
   public:
    Flag(HostFlags& flags, std::uint32_t* word) noexcept : flags_(flags), word_(word) {
      std::atomic_ref{*word_}.store(0, std::memory_order_relaxed);  // the driver orders it before the stream's wait
    }
    Flag(Flag const&) = delete;
    Flag& operator=(Flag const&) = delete;
    ~Flag() { flags_.put_back(word_); }

    /// Lets the stream go on. Release: what the stream does then sees what was written before.
    void raise() noexcept { std::atomic_ref{*word_}.store(1, std::memory_order_release); }

    /// The address that the stream waits at. Host and GPU share it (unified addressing).
    [[nodiscard]] DevicePointer address() const noexcept { return reinterpret_cast<DevicePointer>(word_); }

   private:
    HostFlags& flags_;
    std::uint32_t* word_;
  };

  HostFlags(ContextRef const& gpu, Health& health) noexcept : gpu_(gpu), health_(health) {}

  /// The context is current. Throws DeviceError if the driver has no pinned memory left.
  [[nodiscard]] std::shared_ptr<Flag> take();

 private:
  void put_back(std::uint32_t* word) noexcept;

  static constexpr std::size_t words_at_once = 1024;

  ContextRef const& gpu_;
  Health& health_;
  std::mutex mutex_;
  std::vector<std::uint32_t*> free_;
  std::size_t made_ = 0;
};

}  // namespace unimem::detail::cuda
