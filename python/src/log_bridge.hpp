#pragma once

namespace unimem::python {

/// From now on what the library logs goes to Python's logger "unimem". A thread that logs may hold locks of the
/// library's, and what handlers do may need them: so it leaves its message behind and goes on, and a thread that holds
/// nothing and is there for a moment takes the interpreter's lock and tells what has come together.
///
/// `every_level`: Python's levels alone decide what is shown; else `UNIMEM_LOG_LEVEL` does first.
void log_to_python(bool every_level);

/// Before the interpreter ends, with its lock: what was logged so far is told, by handlers that still work, and what
/// comes later goes to stderr.
void python_log_ends();

/// In a forked child, which has not the thread that tells: what is left is the parent's to tell.
void forget_messages_of_the_parent() noexcept;

}  // namespace unimem::python
