#pragma once

#include "stream/output_file.hpp"
#include "stream/resumption.hpp"

#include <optional>

namespace unimem::detail {

struct StreamRequest;

/// What a stream writes: its output, the journal beside it with `resume`, and its manifest, each where it was asked
/// for. They come to their places when all is done, and not at all if it is not. Used by one thread at a time.
class StreamOutputs {
 public:
  /// Makes the files, so that a place where nothing can be written is known before the work; an output has its header
  /// then. Throws IoError, and what OutputFile and Resumption throw.
  explicit StreamOutputs(StreamRequest const& request);

  /// Null where none was asked for.
  [[nodiscard]] OutputFile* output() noexcept { return output_ ? &*output_ : nullptr; }
  [[nodiscard]] Resumption* resumption() noexcept { return resumption_ ? &*resumption_ : nullptr; }

  /// Puts all in place. Throws IoError.
  void commit(StreamRequest const& request);

 private:
  std::optional<OutputFile> manifest_, output_;
  std::optional<Resumption> resumption_;
};

}  // namespace unimem::detail
