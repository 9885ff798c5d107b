#pragma once

#include "device/cuda_standin/streams.hpp"

// The threads that carry out what streams have queued, one for each stream that ever got a command.

namespace unimem::standin {

/// Starts the thread of a stream. It ends when the stream is retired and drained, or with the process.
void start_worker(std::shared_ptr<StreamState> const& stream);

/// Lets a context's error be seen as soon as no copy of it runs any more: who sees the error may take the host memory
/// of such a copy away.
void settle(ContextState& context);

/// Lets the workers look again at what they wait for.
void wake_workers();

}  // namespace unimem::standin
