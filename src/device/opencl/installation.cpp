#include "device/opencl/installation.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>

#include "core/sanitizers.hpp"
#include "device/driver_stream.hpp"
#include "device/opencl/probe.hpp"
#include "device/process_end.hpp"

#include <charconv>
#include <chrono>
#include <exception>
#include <utility>

namespace unimem::detail::opencl {
namespace {

// A forked child of a ThreadSanitizer process hangs in the runtime's own locks, so there the probe is left out.
constexpr bool can_probe = !under_thread_sanitizer;

std::chrono::milliseconds patience() {
  constexpr auto name = "UNIMEM_OPENCL_PROBE_TIMEOUT_MS";
  auto const text = environment(name);
  if (!text) return std::chrono::seconds{10};
  int milliseconds = 0;
  auto const* const end = text->data() + text->size();
  auto const read = std::from_chars(text->data(), end, milliseconds);
  if (read.ec != std::errc{} || read.ptr != end || milliseconds <= 0) {
    throw InvalidArgument(name, *text, "a positive number of milliseconds");
  }
  return std::chrono::milliseconds{milliseconds};
}

Survey load_and_survey(Announce const& announce) {
  announce("loading the OpenCL loader");
  auto loaded = load_api();
  if (!loaded.problem.empty()) return {{}, std::move(loaded.problem)};
  watch_process_end(&finish_all_streams);
  // Kept for good: devices and whatever was made on them point to the tables.
  static Api const api = loaded.api;
  static Api const serial = serialized(api);
  auto found = survey(api, serial, announce);
  watch_process_end(&finish_all_streams);  // the vendors' libraries are there by now
  watch_main_thread();
  return found;
}

Survey look() {
  try {
    bool const wants_probe = environment_flag("UNIMEM_OPENCL_PROBE", true);
    auto const limit = patience();
    if (can_probe && wants_probe) {
      auto reason = probe([](Announce const& announce) { return load_and_survey(announce).reason; }, limit);
      if (!reason.empty()) return {{}, std::move(reason)};
    }
    return load_and_survey([](std::string const&) {});
  } catch (std::exception const& failure) {
    return {{}, failure.what()};
  }
}

}  // namespace

Survey const& installation() {
  static auto const& found = *new Survey(look());  // outlives every static object that may still hold a device
  return found;
}

}  // namespace unimem::detail::opencl
