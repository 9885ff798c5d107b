#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "stream/chunk_work.hpp"
#include "stream/conveyor.hpp"
#include "stream/input_file.hpp"
#include "stream/mapped_input.hpp"
#include "stream/output_file.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

namespace unimem::detail {

/// How a file is cut up.
struct ChunkPlan {
  std::size_t chunk_bytes = 0;  ///< of every chunk but the last, which may be shorter
  std::size_t slots = 0;        ///< chunks under way at once, at most
  bool mapped = false;          ///< chunks are windows of the file itself
  bool reduces = false;         ///< results are combined
  bool writes = false;          ///< results are written
};

/// The slots that chunks go round in, and the threads that carry them: a reader that fills the next free slot and
/// submits its work, the caller that waits for it and takes the results in, and, with an output, a writer. Uploads,
/// kernels and downloads are the device's; each slot has a queue of its own, so that one chunk's upload and another's
/// kernel overlap.
///
/// Used by one thread. Destroying it waits for work under way.
class ChunkRing {
 public:
  /// Takes the memory of as many slots as fit, at most `plan.slots`. Throws OutOfMemory if not one does.
  ChunkRing(MemoryManager& manager, Device& device, InputFile const& input, ChunkRun& run, ChunkPlan const& plan);
  ChunkRing(ChunkRing const&) = delete;
  ChunkRing& operator=(ChunkRing const&) = delete;
  ~ChunkRing();

  [[nodiscard]] std::size_t slots() const noexcept { return slots_.size(); }

  /// Sends the whole file through; `output` is needed if the plan writes. Throws what went wrong first, anywhere, after
  /// every thread has ended.
  void run(OutputFile* output, std::function<void(std::uint64_t, std::uint64_t)> const& progress,
           std::stop_token const& cancel);

  /// What all slots have moved so far.
  [[nodiscard]] BufferStatistics moved() const noexcept;

 private:
  struct Slot;

  [[nodiscard]] std::unique_ptr<Slot> make_slot() const;
  [[nodiscard]] UnifiedBuffer<std::byte> wrapped(void* memory, std::size_t bytes) const;
  void read_all(Conveyor& conveyor);
  void take_in(std::size_t number, Conveyor& conveyor);
  void write_all(Conveyor& conveyor, OutputFile& output);

  MemoryManager& manager_;
  Device& device_;
  InputFile const& input_;
  ChunkRun& run_;
  ChunkPlan plan_;
  std::optional<MappedInput> windows_;
  std::vector<std::unique_ptr<Slot>> slots_;  ///< after the windows: goes first, and waits for the work on them
};

}  // namespace unimem::detail
