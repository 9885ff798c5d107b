#pragma once

#include <unimem/device/device.hpp>
#include <unimem/stream/element_type.hpp>
#include <unimem/stream/stream_file.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "stream/chunk_plan.hpp"
#include "stream/chunk_work.hpp"
#include "stream/input.hpp"
#include "stream/input_check.hpp"
#include "stream/manifest.hpp"
#include "stream/stream_memory.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <span>

namespace unimem::detail {

/// A stream that was asked for: its options, kernel and input, checked against each other, and what a run of it needs
/// to know. Making it opens the input and builds the kernel, reads no elements and writes nothing.
struct StreamRequest {
  /// `kernel` and `options` outlive it. Throws what `stream_files` does for options and an input that it does not take.
  StreamRequest(std::span<const std::filesystem::path> paths, StreamKernel const& kernel, StreamOptions const& options);
  StreamRequest(StreamRequest const&) = delete;
  StreamRequest& operator=(StreamRequest const&) = delete;
  ~StreamRequest() = default;

  /// Whether there are no bytes to compute: no chunks are planned then.
  [[nodiscard]] bool is_empty() const noexcept { return input.bytes() == 0; }

  StreamOptions const& options;
  StreamKernel const& kernel;
  std::optional<Manifest> expected;  ///< what the input is compared with
  StreamMemory memory;
  Input input;
  ElementType element;  ///< what the input is taken to hold
  ChunkPlan plan;
  std::unique_ptr<ChunkRun> run;
  std::optional<InputCheck> check;  ///< where checksums were asked for, in one way or another; watches the input
};

}  // namespace unimem::detail
