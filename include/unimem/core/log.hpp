#pragma once

#include <unimem/core/export.hpp>

#include <cstdint>
#include <string_view>

namespace unimem {

/// How loud the library is. `UNIMEM_LOG_LEVEL` (`off`, `error`, `warning`, `info`, `debug`) sets it at start; `warning`
/// otherwise, and a value that is none of these is told of in a line on stderr then, whether or not anything is logged.
enum class LogLevel : std::uint8_t { off, error, warning, info, debug };

/// Thread-safe.
UNIMEM_API void set_log_level(LogLevel level);

/// Writes a message, mostly of one line, to stderr through spdlog, if `level` is loud enough. Logging never replaces an
/// error: what the caller must know is thrown. Thread-safe; never throws.
UNIMEM_API void log(LogLevel level, std::string_view message) noexcept;

/// Where messages go instead of stderr. Called on whatever thread logs, which may hold locks of the library's: it takes
/// the message along and returns, and asks no other thread for anything. False: to stderr, after all.
using LogSink = bool (*)(LogLevel level, std::string_view message) noexcept;

/// From now on messages that are loud enough go to `sink`; null: to stderr. Thread-safe; a call that has begun may go
/// on.
UNIMEM_API void set_log_sink(LogSink sink) noexcept;

}  // namespace unimem
