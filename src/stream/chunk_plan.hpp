#pragma once

#include <unimem/device/device.hpp>
#include <unimem/stream/stream_file.hpp>

#include "stream/chunk_work.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace unimem::detail {

/// Chunks under way beyond this number wait for one another all the same.
inline constexpr std::size_t most_slots = 64;

/// How a stream's input is cut up.
struct ChunkPlan {
  std::size_t chunk_bytes = 0;  ///< of every chunk but the last, which may be shorter
  std::size_t slots = 0;        ///< chunks under way at once, at most
  bool mapped = false;          ///< chunks are windows of the only file itself
  bool reduces = false;         ///< results are combined
  bool writes = false;          ///< results are written
};

/// Decides how large the chunks are and how many slots there may be, the input and the memory limit considered.
/// `input_bytes`: more than none; nothing where they are not known. Throws OutOfMemory if the limit is below one chunk.
void divide(ChunkPlan& plan, StreamOptions const& options, Device& device, ChunkRun const& run,
            std::optional<std::uint64_t> input_bytes, std::size_t element_bytes);

}  // namespace unimem::detail
