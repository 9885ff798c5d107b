#include <unimem/core/size.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/usage.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

namespace unimem {

std::string LeakReport::text(std::size_t most) const {
  if (empty()) return {};
  auto text =
      fmt::format("unimem: {} of buffers in {} piece{} {} not been given back:\n", format_size(bytes),
                  allocations.size(), allocations.size() == 1 ? "" : "s", allocations.size() == 1 ? "has" : "have");
  for (std::size_t i = 0; i < std::min(most, allocations.size()); ++i) {
    auto const& one = allocations[i];
    fmt::format_to(std::back_inserter(text), "  {} on {} {}, {:.2f} s old, {} of buffer #{}\n", format_size(one.bytes),
                   one.device->id(), to_string(one.location), one.age_seconds,
                   one.name.empty() ? std::string("without a name,") : fmt::format("'{}'", one.name.view()),
                   one.buffer);
    for (auto const address : one.stack) text += fmt::format("      {}\n", describe_address(address));
  }
  if (most < allocations.size()) text += fmt::format("  and {} more\n", allocations.size() - most);
  return text;
}

}  // namespace unimem
