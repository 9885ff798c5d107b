#include "buffer/operand_parts.hpp"

#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <algorithm>

namespace unimem::detail {
namespace {

bool are_apart(ByteRange one, ByteRange other) noexcept {
  // An empty range lies with what it touches.
  if (one.empty() || other.empty()) return one.end < other.begin || other.end < one.begin;
  return one.end <= other.begin || other.end <= one.begin;
}

}  // namespace

ByteRange part_of(std::span<const Operand> operands, Operand const& operand, Sharing sharing) noexcept {
  auto const is_written = [&](Operand const& other) {
    return other.buffer == operand.buffer && other.intent != Intent::read;
  };
  bool const always = sharing == Sharing::always || std::ranges::any_of(operands, is_written);
  auto hull = operand.range;
  ByteRange before;
  do {
    before = hull;
    for (auto const& [buffer, range, intent] : operands) {
      if (buffer != operand.buffer || are_apart(hull, range)) continue;
      if (!always && !range.contains(hull)) continue;
      hull = {std::min(hull.begin, range.begin), std::max(hull.end, range.end)};
    }
  } while (before != hull);
  return hull;
}

std::size_t least_bytes(std::span<const Operand> operands, MemoryManager const& manager) noexcept {
  std::size_t bytes = 0;
  for (auto one = operands.begin(); one != operands.end(); ++one) {
    auto const part = part_of(operands, *one, Sharing::always);
    auto const same = [&](Operand const& other) {
      return other.buffer == one->buffer && part_of(operands, other, Sharing::always) == part;
    };
    bool const counted = std::find_if(operands.begin(), one, same) != one;
    if (!counted && &one->buffer->manager() == &manager) bytes += part.size();
  }
  return bytes;
}

bool clear_the_way(Device& device, std::span<const Operand> operands) {
  if (operands.size() < 2 || device.reaches_host_memory()) return false;  // it has nothing in its own way
  if (is_in_work()) return false;  // which waits for nothing that its own device may have to do first
  auto const fits = [&](Operand const& operand) {
    auto const& manager = operand.buffer->manager();
    return least_bytes(operands, manager) <= manager.total_memory(device);
  };
  if (!std::ranges::all_of(operands, fits)) return false;
  for (auto const& operand : operands) {
    operand.buffer->release_device(&device, BufferCore::Leased::stays);
    static_cast<void>(operand.buffer->manager().pool(device, Location::device).trim());
  }
  return true;
}

}  // namespace unimem::detail
