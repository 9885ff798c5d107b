#include "stream/chunk_plan.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace unimem::detail {
namespace {

/// Smaller chunks cost more by their number than fewer buffers do.
constexpr std::size_t least_fitted_chunk = std::size_t{64} << 10;

/// The device memory one slot is reckoned at. A window of a mapped file takes none, but a limit below it is still one
/// below a chunk.
std::size_t slot_bytes(ChunkPlan const& plan, std::size_t result_bytes) {
  if (plan.mapped) return std::max(plan.chunk_bytes, result_bytes);
  return checked_add(plan.chunk_bytes, result_bytes, "chunk_bytes");
}

/// How many slots the options and the file ask for, whatever memory there is.
std::size_t slots_wanted(StreamOptions const& options, Device& device, ChunkRun const& run, ChunkPlan const& plan,
                         std::uint64_t file_bytes) {
  auto const chunks = (file_bytes - 1) / plan.chunk_bytes + 1;
  auto const slots = static_cast<std::size_t>(std::min<std::uint64_t>({options.buffers, most_slots, chunks}));
  // Where nothing is shared, results of their own are a third chunk to a slot (host, device, device): two slots take
  // what three did, so that the bound on resident memory holds.
  bool const third_chunk =
      !plan.reduces && run.result_bytes(plan.chunk_bytes) != 0 && !device.shares_storage_with_host();
  return third_chunk ? std::max<std::size_t>(1, slots * 2 / 3) : slots;
}

}  // namespace

void divide(ChunkPlan& plan, StreamOptions const& options, Device& device, ChunkRun const& run,
            std::optional<std::uint64_t> input_bytes, std::size_t element_bytes) {
  auto const file_bytes = input_bytes.value_or(std::numeric_limits<std::uint64_t>::max());
  auto const most = std::min(options.memory_limit, device.info().total_bytes);
  auto const limit = most - std::min(most, run.kept_bytes());
  std::size_t slots = 0, result_bytes = 0, each = 0;
  for (auto wanted = options.chunk_bytes;; wanted = wanted / 2 / element_bytes * element_bytes) {
    plan.chunk_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(wanted, file_bytes));
    slots = slots_wanted(options, device, run, plan, file_bytes);
    result_bytes = run.result_bytes(plan.chunk_bytes);
    each = slot_bytes(plan, result_bytes);
    bool const fewer_would_do = each <= limit && wanted / 2 < least_fitted_chunk;
    if (!options.fit_chunk || slots <= limit / each || fewer_would_do || wanted / 2 < element_bytes) break;
  }
  if (each > limit) {
    OutOfMemory::Facts facts;
    facts.where = fmt::format("{} device", device.id());
    facts.requested = each;
    facts.limit = limit;
    facts.device_free = device.memory_info().free_bytes;
    facts.reason = fmt::format("the limit is below one chunk: {} and {} of results", format_size(plan.chunk_bytes),
                               format_size(result_bytes));
    throw OutOfMemory(std::move(facts));
  }
  plan.slots = std::min(slots, limit / each);
}

}  // namespace unimem::detail
