#pragma once

#include <cstddef>

namespace unimem::testing {

/// What this rank has asked MPI to move since `counted_calls` was last reset: seen at MPI's own calls, whatever the
/// library says.
struct CountedCalls {
  std::size_t sends = 0;  ///< blocking or not
  std::size_t sent_bytes = 0;
  std::size_t gets = 0;  ///< one-sided
  std::size_t got_bytes = 0;
};

/// Thread-safe.
[[nodiscard]] CountedCalls counted_calls();
void reset_counted_calls();

/// Calls that can be made to fail as MPI's own do, such as when a rank has died: the next call of that kind returns
/// `code` and does nothing else.
enum class MpiCall { probe, send, receive, get, reduce };
void fail_next(MpiCall call, int code);

}  // namespace unimem::testing
