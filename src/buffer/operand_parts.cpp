#include "buffer/operand_parts.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/device.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unimem::detail {
namespace {

bool are_apart(ByteRange one, ByteRange other) noexcept {
  // An empty range lies with what it touches.
  if (one.empty() || other.empty()) return one.end < other.begin || other.end < one.begin;
  return !one.meets(other);
}

/// Of the device's memory, for all operands together.
std::size_t least_bytes(Device const& device, std::span<const Operand> operands) noexcept {
  std::size_t bytes = 0;
  for (auto one = operands.begin(); one != operands.end(); ++one) {
    auto const part = part_of(operands, *one, Room::least);
    auto const same = [&](Operand const& other) {
      return other.buffer == one->buffer && part_of(operands, other, Room::least) == part;
    };
    if (std::find_if(operands.begin(), one, same) == one) bytes += least_window(device, *one->buffer, part).size();
  }
  return bytes;
}

}  // namespace

ByteRange part_of(std::span<const Operand> operands, Operand const& operand, Room room) noexcept {
  auto const is_written = [&](Operand const& other) {
    return other.buffer == operand.buffer && other.intent != Intent::read;
  };
  bool const always = room == Room::least || std::ranges::any_of(operands, is_written);
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

ByteRange least_window(Device const& device, BufferCore const& buffer, ByteRange part) noexcept {
  auto const bytes = buffer.size_bytes();
  if (part.empty() && bytes != 0) part = {std::min(part.begin, bytes - 1), std::min(part.begin, bytes - 1) + 1};
  auto const aligned = std::max<std::size_t>(1, device.info().alignment);
  return {part.begin / aligned * aligned, part.end};
}

bool least_may_fit(Device& device, std::span<const Operand> operands, OutOfMemory const& refused) {
  auto const& facts = refused.facts();
  if (operands.size() < 2 || device.reaches_host_memory() || !facts.where.starts_with(device.id())) return false;
  if (is_in_work()) return false;  // which waits for nothing that its own device may have to do first
  auto const least = least_bytes(device, operands);
  auto const ours = facts.live + facts.cached;
  return least <= facts.limit - std::min(facts.limit, facts.leased) && least <= ours + facts.device_free;
}

void clear_the_way(Device& device, std::span<const Operand> operands, OutOfMemory const& refused) {
  try {
    for (auto const& operand : operands) operand.buffer->release_device(&device, BufferCore::Leased::stays);
  } catch (IoError const& failure) {
    auto facts = refused.facts();
    facts.reason += fmt::format("; what the operands have there could not be saved: {}", failure.what());
    throw OutOfMemory(std::move(facts));
  }
}

}  // namespace unimem::detail
