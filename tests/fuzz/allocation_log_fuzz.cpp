#include <unimem/core/error.hpp>
#include <unimem/pool/allocation_log.hpp>

#include "fuzz/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>

namespace unimem::fuzz {
namespace {

/// Carries a log out without a pool: every slot is live or not, every number is the next or was there before.
void validate(AllocationLog const& log) {
  std::vector<std::optional<std::size_t>> slots(log.most_live);
  std::uint64_t live_bytes = 0;
  std::uint32_t live = 0, most_live = 0, threads = 0, streams = 0;
  for (auto const& event : log.events) {
    require(event.thread <= threads, "a thread is not numbered by its appearance");
    threads = std::max(threads, event.thread + 1);
    require(event.stream <= streams + 1, "a stream is not numbered by its appearance");
    streams = std::max(streams, event.stream);
    require(event.slot < slots.size(), "a slot beyond the most that are live");
    auto& slot = slots[event.slot];
    if (event.allocates) {
      require(!slot, "an allocation has the slot of another");
      slot = event.bytes;
      live_bytes += event.bytes;
      most_live = std::max(most_live, ++live);
      require(live_bytes <= static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max()),
              "8 EiB or more are live");
    } else {
      require(slot == event.bytes, "a release of what is not live, or of another size");
      live_bytes -= event.bytes;
      --live;
      slot.reset();
    }
  }
  require(threads == log.threads && streams == log.streams && most_live == log.most_live, "a log miscounts itself");
}

std::string written(AllocationLog const& log) {
  std::string text = "Stream,Size,Pointer,\"Action\",Thread\r\n";
  for (auto const& event : log.events) {
    fmt::format_to(std::back_inserter(text), "{:#x},{},{:x},{},{}\r\n", event.stream, event.bytes, event.slot + 1U,
                   event.allocates ? "allocate" : "free", event.thread + 7);
  }
  return text;
}

bool same(AllocationLogEvent const& a, AllocationLogEvent const& b) {
  return a.allocates == b.allocates && a.thread == b.thread && a.stream == b.stream && a.slot == b.slot &&
         a.bytes == b.bytes;
}

bool run_allocation_log(std::string_view input) {
  auto const log = taken<IoError>([&] {
    try {
      return parse_allocation_log(input, "log.csv");
    } catch (IoError const& refusal) {
      require(refusal.path == "log.csv" && refusal.code == 0, "a refusal names another file");
      require_short_line(refusal.what());
      throw;
    }
  });
  if (!log) return false;
  validate(*log);
  require(log->events.size() < static_cast<std::size_t>(std::ranges::count(input, '\n') + 1), "more events than lines");
  auto const again = parse_allocation_log(written(*log), "log.csv");
  require(std::ranges::equal(log->events, again.events, same), "what is written from a log has other events");
  require(log->threads == again.threads && log->streams == again.streams && log->most_live == again.most_live,
          "what is written from a log has other counts");
  return true;
}

Enlisted const allocation_log_target{{"allocation_log", run_allocation_log}};

}  // namespace
}  // namespace unimem::fuzz
