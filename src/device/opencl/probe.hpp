#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace unimem::detail::opencl {

/// Tells the probing parent what its child is about to do.
using Announce = std::function<void(std::string const&)>;

/// Runs `attempt` in a forked child, because a broken driver is a library that crashes or hangs in the process that
/// loads it, and neither can be undone in this process. Returns what `attempt` returned (empty: all is well), or, when
/// the child died or took longer than `patience`, a sentence that says so and during which announced step.
///
/// The child writes nothing to stdout or stderr, leaves no core file, runs no exit handlers, and is killed and reaped
/// before this returns.
[[nodiscard]] std::string probe(std::function<std::string(Announce const&)> const& attempt,
                                std::chrono::milliseconds patience);

}  // namespace unimem::detail::opencl
