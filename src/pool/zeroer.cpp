#include "pool/zeroer.hpp"

#include <unimem/core/log.hpp>

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>

namespace unimem::detail {

// Unified memory is not the host's here: some drivers forbid touching it there while the device works on anything.
Zeroer::Zeroer(Device& device, Location location) noexcept
    : device_(device),
      host_memory_(location == Location::host || location == Location::pinned || device.reaches_host_memory()) {}

void Zeroer::begin(Block& block) noexcept {
  block.erasure = Erasure::begun;
  block.erasing = {};
  try {
    if (!block.settled()) return;
    if (auto* const address = this->address(block)) {
      std::memset(address, 0, block.capacity());
      block.erasure = Erasure::none;
      return;
    }
    block.erasing = fill(block);
    block.inherited = {};
    block.last_use = block.erasing;
  } catch (...) {  // NOLINT(bugprone-empty-catch): it is tried again before the block has a new owner
  }
}

bool Zeroer::is_done(Block& block) noexcept {
  bool const ended = block.erasure == Erasure::begun && block.erasing != Event{} && block.erasing.ready();
  if (ended && block.erasing.error() == nullptr) block.erasure = Erasure::none;
  return block.erasure == Erasure::none;
}

bool Zeroer::erased(Block& block) noexcept {
  if (is_done(block)) return true;
  if (block.erasure == Erasure::given_up) return false;
  try {
    if (auto* const address = this->address(block)) {
      std::memset(address, 0, block.capacity());
    } else {
      fill(block).wait();
    }
    block.erasure = Erasure::none;
    return true;
  } catch (std::exception const& error) {
    block.erasure = Erasure::given_up;
    try {
      log(LogLevel::error,
          fmt::format("{}: a released block of {} bytes cannot be overwritten, and is not used again: {}", device_.id(),
                      block.capacity(), error.what()));
    } catch (std::exception const&) {
      log(LogLevel::error, "a released block cannot be overwritten, and is not used again");
    }
    return false;
  }
}

Event Zeroer::leave_to(Queue& queue, Block const& block) const {
  static constexpr std::array<std::byte, 1> zero{};
  return queue.fill(block.memory, zero);
}

void* Zeroer::address(Block const& block) const noexcept {
  return host_memory_ ? device_.address(block.memory) : nullptr;
}

Event Zeroer::fill(Block const& block) {
  return leave_to(queue_.get([this] { return std::make_unique<Queue>(device_.create_queue()); }), block);
}

}  // namespace unimem::detail
