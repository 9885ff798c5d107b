#pragma once

#include "stream/journal.hpp"
#include "stream/output_file.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// Where a stream goes on that another process has begun, and what it leaves for one that goes on after it: a journal
/// of the chunks that are in the output. For kernels whose output has the input's size. Used by one thread at a time.
class Resumption {
 public:
  /// Reads what is there of `output`, which outlives this: the chunks count that its journal has and whose bytes are
  /// what was written. `header`: what the output begins with; written if it is not there. `block_bytes`: the stream can
  /// go on at whole multiples of it alone (1: anywhere). Throws IoError, as Journal does.
  Resumption(OutputFile& output, std::string_view header, Journal::Identity const& identity, std::uint64_t block_bytes);

  /// Bytes of the input that are through.
  [[nodiscard]] std::uint64_t begin() const noexcept { return begin_; }
  /// The checksums that were found in them.
  [[nodiscard]] std::vector<std::uint64_t> input_digests() const;

  /// The next chunk is in the output: `output`, for the input's bytes from the end of the one before.
  void wrote(std::span<const std::byte> output, std::vector<std::uint64_t> input_digests);
  /// The output is in its place: there is nothing to go on with.
  void end() { journal_.remove(); }
  /// No run is to go on from what is there: it goes.
  void give_up();

 private:
  [[nodiscard]] bool begins_with(std::string_view header) const;
  [[nodiscard]] bool has(std::uint64_t offset, std::uint64_t bytes, std::uint64_t digest) const;

  OutputFile& output_;
  Journal journal_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;  ///< of what is through by now
};

}  // namespace unimem::detail
