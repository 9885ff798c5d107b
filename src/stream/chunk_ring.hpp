#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "stream/chunk_plan.hpp"
#include "stream/chunk_work.hpp"
#include "stream/conveyor.hpp"
#include "stream/input.hpp"
#include "stream/input_check.hpp"
#include "stream/mapped_input.hpp"
#include "stream/output_file.hpp"
#include "stream/resumption.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

namespace unimem::detail {

/// What is told of chunks, and given them. Null, empty: not asked for.
struct ChunkSinks {
  OutputFile* output = nullptr;      ///< needed if the plan writes
  Resumption* resumption = nullptr;  ///< where to begin, too
  InputCheck* check = nullptr;       ///< watches the input already
  std::function<void(std::uint64_t, std::uint64_t)> progress{};
  std::function<void()> check_interrupt{};
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
  ChunkRing(MemoryManager& manager, Device& device, Input& input, ChunkRun& run, ChunkPlan const& plan);
  ChunkRing(ChunkRing const&) = delete;
  ChunkRing& operator=(ChunkRing const&) = delete;
  ~ChunkRing();

  [[nodiscard]] std::size_t slots() const noexcept { return slots_.size(); }

  /// Sends all of the input through. Returns how many bytes that was, with those that another process had. Throws what
  /// went wrong first, anywhere, after every thread has ended.
  std::uint64_t run(ChunkSinks const& sinks, std::stop_token const& cancel);

  /// How many chunks that were.
  [[nodiscard]] std::uint64_t chunks() const noexcept { return chunks_; }

  /// What all slots have moved so far.
  [[nodiscard]] BufferStatistics moved() const noexcept;

 private:
  struct Slot;

  [[nodiscard]] std::unique_ptr<Slot> make_slot() const;
  [[nodiscard]] UnifiedBuffer<std::byte> wrapped(void* memory, std::size_t bytes) const;
  void read_all(Conveyor& conveyor, ChunkSinks const& sinks);
  [[nodiscard]] std::size_t fill(std::size_t number, std::uint64_t offset, std::function<bool()> const& stopping);
  void take_in(std::size_t number, Conveyor& conveyor);
  void write_all(Conveyor& conveyor, ChunkSinks const& sinks);

  MemoryManager& manager_;
  Device& device_;
  Input& input_;
  ChunkRun& run_;
  ChunkPlan plan_;
  std::uint64_t chunks_ = 0;  ///< set by the thread that reads
  std::optional<MappedInput> windows_;
  std::vector<std::unique_ptr<Slot>> slots_;  ///< after the windows: goes first, and waits for the work on them
};

}  // namespace unimem::detail
