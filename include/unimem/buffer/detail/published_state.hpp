#pragma once

#include <unimem/coherence/intent.hpp>
#include <unimem/coherence/state.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace unimem {

class Device;

namespace detail {

/// What threads may read of a buffer without its lock. The holder of the lock writes it, by `publish` and by nothing
/// else, before it lets go of the lock; so it is what the last operation left.
///
/// Reading is thread-safe: each answer is one atomic load.
class PublishedState {
 public:
  /// How a buffer stands.
  struct Facts {
    BufferState state = BufferState::uninitialized;
    bool found_by_looking = false;    ///< host writes are found by looking, so `state` may be old
    bool host_is_current = false;     ///< the host holds every byte
    bool host_is_exclusive = false;   ///< and only the host, all of it counted as written, with nothing in flight: one
                                      ///< more write changes nothing
    bool host_is_exported = false;    ///< an address of the host's memory was given out for writing
    void* host_address = nullptr;     ///< of its memory
    Device* current_on = nullptr;     ///< a device that holds every byte, with nothing in flight anywhere
    std::size_t bytes = 0;            ///< the buffer's size
    Device const* only_on = nullptr;  ///< the one device that there is memory of its own on, if there is one
    bool on_several = false;
    std::size_t spillable_bytes = 0;  ///< of host memory that might be spilled
  };

  void publish(Facts const& facts) noexcept;
  /// Work is pending that writes what its device alone has: all else is as it was.
  void publish_write_in_flight() noexcept { current_on_.store(nullptr, std::memory_order_release); }

  [[nodiscard]] BufferState state() const noexcept { return state_of(summary_.load(std::memory_order_acquire)); }
  /// Whether finding out the state takes a look at the host's memory.
  [[nodiscard]] bool needs_look() const noexcept {
    return (summary_.load(std::memory_order_acquire) & by_looking) != 0;
  }
  /// Whether a host access waits for nothing, whatever the range.
  [[nodiscard]] bool host_is_ready(Intent intent) const noexcept {
    auto const summary = summary_.load(std::memory_order_acquire);
    return (summary & (intent == Intent::read ? host_current : host_exclusive)) != 0;
  }
  /// Whether such an access may begin at once, at `host_address`.
  [[nodiscard]] bool host_may_access(Intent intent) const noexcept {
    auto const known = intent == Intent::read ? host_current : host_exclusive | host_exported;
    return (summary_.load(std::memory_order_acquire) & known) == known;
  }
  /// After `host_may_access`.
  [[nodiscard]] void* host_address() const noexcept { return host_address_; }
  /// Whether bringing the buffer up to date on `device` is nothing to do.
  [[nodiscard]] bool is_current_on(Device const& device) const noexcept {
    return current_on_.load(std::memory_order_acquire) == &device;
  }

  /// A number alone: nothing else is published through it.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  /// Whether the buffer has memory of `device`'s own.
  [[nodiscard]] bool has_memory_on(Device const& device) const noexcept {
    auto const on = memory_on_.load(std::memory_order_relaxed);
    return on == on_several || on == address_of(device);
  }
  [[nodiscard]] std::size_t spillable_bytes() const noexcept {
    return spillable_bytes_.load(std::memory_order_relaxed);
  }

 private:
  // The state is in the low byte.
  static constexpr std::uint32_t host_current = 1U << 8;
  static constexpr std::uint32_t host_exclusive = 1U << 9;
  static constexpr std::uint32_t by_looking = 1U << 10;
  static constexpr std::uint32_t host_exported = 1U << 11;
  // Neither is a device's address.
  static constexpr std::uintptr_t on_none = 0;
  static constexpr std::uintptr_t on_several = 1;
  static std::uintptr_t address_of(Device const& device) noexcept { return reinterpret_cast<std::uintptr_t>(&device); }
  static constexpr BufferState state_of(std::uint32_t summary) noexcept {
    return static_cast<BufferState>(summary & 0xFFU);
  }

  std::atomic<std::uint32_t> summary_{static_cast<std::uint32_t>(BufferState::uninitialized)};
  void* host_address_ = nullptr;  ///< published by `summary_`
  std::atomic<Device*> current_on_{nullptr};
  std::atomic<std::size_t> bytes_{0};
  /// Where there is memory of a device's own, in one word: two would be seen apart, and a device missed meanwhile.
  std::atomic<std::uintptr_t> memory_on_{on_none};
  std::atomic<std::size_t> spillable_bytes_{0};
};

}  // namespace detail
}  // namespace unimem
