#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "core/fork.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace unimem {
namespace {

constexpr std::array<std::pair<std::string_view, spdlog::level::level_enum>, 5> levels{{
    {"off", spdlog::level::off},
    {"error", spdlog::level::err},
    {"warning", spdlog::level::warn},
    {"info", spdlog::level::info},
    {"debug", spdlog::level::debug},
}};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  return levels[static_cast<std::size_t>(level)].second;
}

/// Never destroyed: destructors of static objects may log. Not registered with spdlog, whose registry is the program's.
/// `log` lets one thread at a time write.
spdlog::logger& logger() {
  static auto& instance = *[] {
    auto made = new spdlog::logger("unimem", std::make_shared<spdlog::sinks::stderr_sink_st>());
    made->set_pattern("unimem: %l: %v");
    made->set_level(spdlog::level::warn);
    if (auto const wanted = environment("UNIMEM_LOG_LEVEL")) {
      bool known = false;
      for (auto const& [name, level] : levels) {
        if (name == *wanted) made->set_level(level), known = true;
      }
      if (!known) made->warn("UNIMEM_LOG_LEVEL '{}' is not one of off, error, warning, info, debug", *wanted);
    }
    return made;
  }();
  return instance;
}

constinit std::atomic<LogSink> sink{nullptr};

/// A level that is none is told of when the program starts: most programs log nothing, and would never hear of it.
[[maybe_unused]] bool const read_at_start = [] {
  try {
    return environment("UNIMEM_LOG_LEVEL") && logger().should_log(spdlog::level::err);
  } catch (...) {  // no memory before the program has begun: it will notice
    return false;
  }
}();

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(spdlog_level(level));
}

void set_log_sink(LogSink taker) noexcept {
  sink.store(taker, std::memory_order_release);  // with what it was made from
}

void log(LogLevel level, std::string_view message) noexcept {
  try {
    if (!logger().should_log(spdlog_level(level))) return;
    if (auto* const taker = sink.load(std::memory_order_acquire); taker != nullptr && taker(level, message)) return;
    // Not the sink's own, which would stay held in a child that is forked meanwhile.
    static constinit detail::PerProcess<std::mutex> mutex;
    std::lock_guard const lock{mutex.get()};
    logger().log(spdlog_level(level), message);
  } catch (...) {  // NOLINT(bugprone-empty-catch): a line that cannot be written must not become an error of its own
  }
}

}  // namespace unimem
