#include "commands.hpp"
#include "named_device.hpp"
#include "standard_streams.hpp"
#include "storage_location.hpp"

#include <unimem/core/size.hpp>
#include <unimem/pool/replay.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <string>

namespace unimem::cli {
namespace {

std::string json_of(ReplayResult const& result) {
  nlohmann::ordered_json json;
  json["operations"] = result.operations;
  json["completed"] = result.completed();
  json["failed_at"] = nullptr;
  if (result.failed_at) json["failed_at"] = *result.failed_at;
  json["nanoseconds_per_operation"] = result.nanoseconds_per_operation;
  json["peak_live_bytes"] = result.peak_live_bytes;
  json["peak_reserved_bytes"] = result.peak_reserved_bytes;
  json["overhead"] = result.overhead();
  json["hit_rate"] = result.hit_rate;
  return json.dump() + '\n';
}

std::string text_of(ReplayResult const& result, ReplayCommand const& command, MemoryPool const& pool) {
  auto text = fmt::format("{}: {} operations on {} {}\n", command.trace.native(), result.operations, pool.device().id(),
                          to_string(pool.location()));
  if (result.failed_at) text += fmt::format("  did not fit   stopped at operation {}\n", *result.failed_at);
  if (result.failed_at != 0 && result.operations != 0) {
    text += fmt::format("  time          {:.1f} ns per operation\n", result.nanoseconds_per_operation);
  }
  text += fmt::format("  most live     {}\n", format_size(result.peak_live_bytes));
  text += fmt::format("  most reserved {}", format_size(result.peak_reserved_bytes));
  if (result.peak_live_bytes != 0) text += fmt::format(", {:.3f} times as much", result.overhead());
  return text + fmt::format("\n  hits          {:.1f} %\n", 100 * result.hit_rate);
}

}  // namespace

int run(ReplayCommand const& command) {
  auto const log = read_allocation_log(command.trace);
  auto& device = device_named(command.device);
  PoolOptions options;
  if (command.capacity) options.max_bytes = *command.capacity;
  MemoryPool pool(device, storage_location(device), options);
  auto const result = replay(log, pool);
  write_standard_output(command.json ? json_of(result) : text_of(result, command, pool));
  return EXIT_SUCCESS;
}

}  // namespace unimem::cli
