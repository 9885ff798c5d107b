#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/memory.hpp>

#include "buffer/buffer_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// A device's copy of a buffer is as large as the buffer, whatever part of it an operation is about. Where that is why
// there is no memory for it, the error says so.

namespace unimem {

void BufferCore::refuse_copies(OutOfMemory const& refused, Device& device, std::span<const Operand> operands) {
  auto facts = refused.facts();
  bool const of_copies = facts.where == fmt::format("{} {}", device.id(), to_string(Location::device));
  if (!of_copies || !facts.buffer.empty()) throw;
  std::size_t most_unused = 0;
  for (auto const& [buffer, range, intent] : operands) {
    ByteRanges used;
    for (auto const& other : operands) {
      if (other.buffer == buffer) used.add(other.range);
    }
    Guard const parts(*buffer->parts_);
    auto const place = parts->replicas.places.find(device);
    bool const stands = place && parts->replicas.coherence.has_storage(*place);
    auto const unused = parts->replicas.bytes() - std::min(parts->replicas.bytes(), used.size_bytes());
    if (stands || unused <= most_unused) continue;
    most_unused = unused;
    facts.buffer = parts->terms.display_name();
    facts.buffer_bytes = parts->replicas.bytes();
    facts.used_bytes = used.size_bytes();
  }
  if (most_unused == 0) throw;
  throw OutOfMemory(std::move(facts));
}

}  // namespace unimem
