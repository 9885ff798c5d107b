#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/kernel.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

namespace unimem::bench {

// For programs that measure a device with less memory than is used on it.

/// Reads and writes all of what it is given.
[[nodiscard]] inline Kernel add_one() {
  return Kernel("add_one")
      .source(R"(
    UNIMEM_KERNEL add_one(UNIMEM_BUFFER(unsigned, x)) { UNIMEM_DATA(unsigned, x)[UNIMEM_ITEM_X] += 1; })")
      .host([](WorkItem item, std::span<std::uint32_t> x) { ++x[item.x]; });
}

inline void verdict(char const* what, double value, double most) {
  fmt::print("    {:<72} {:6.3f}  target ≤ {:g}: {}\n", what, value, most, value <= most ? "met" : "MISSED");
}

/// What `main` does with `[--quick] [--device ID]`: calls report(device, quick) for that device, or else for a
/// simulated one with a link of 12 GB/s, and opencl:0 if there is one. Returns what `main` does.
template <class Report>
[[nodiscard]] int report_on_devices(int argc, char** argv, Report const& report) try {
  bool quick = false;
  std::vector<std::string> ids;
  for (int i = 1; i < argc; ++i) {
    std::string const argument = argv[i];
    if (argument == "--quick") {
      quick = true;
    } else if (argument == "--device" && i + 1 < argc) {
      ids.emplace_back(argv[++i]);
    } else {
      fmt::print(stderr, "unknown argument '{}'\n", argument);
      return 2;
    }
  }
  if (ids.empty()) {
    ids.emplace_back("sim:memory=1GiB,h2d=12GB/s,d2h=12GB/s,latency=10us");
    try {
      static_cast<void>(device("opencl:0"));
      ids.emplace_back("opencl:0,zero_copy=0");
    } catch (NotFound const&) {
      fmt::print("opencl:0: not here\n");
    }
  }
  for (auto const& id : ids) report(device(id), quick);
  return 0;
} catch (std::exception const& error) {
  fmt::print(stderr, "{}: {}\n", argv[0], error.what());
  return 1;
}

}  // namespace unimem::bench
