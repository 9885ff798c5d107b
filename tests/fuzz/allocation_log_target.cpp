#include <unimem/core/error.hpp>
#include <unimem/pool/allocation_log.hpp>

#include "fuzz/target.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace unimem::fuzz {

bool check_allocation_log(std::string_view input) {
  AllocationLog log;
  try {
    log = parse_allocation_log(input, "log.csv");
  } catch (IoError const& error) {
    std::string_view const said = error.what();
    expect(said.starts_with("log.csv: "), "the error does not name the file");
    expect(said.find('\n') == std::string_view::npos, "the error has several lines");
    return false;
  }
  std::vector<std::size_t> live(log.most_live, 0);
  std::vector<bool> taken(log.most_live, false);
  std::size_t now = 0, most = 0;
  for (auto const& event : log.events) {
    expect(event.thread < log.threads, "a thread that there is not");
    expect(event.stream <= log.streams, "a stream that there is not");
    expect(event.slot < log.most_live, "a slot that there is not");
    expect(taken[event.slot] != event.allocates, "allocated twice, or released twice");
    expect(event.allocates || live[event.slot] == event.bytes, "released with another size");
    taken[event.slot] = event.allocates;
    live[event.slot] = event.bytes;
    now += event.allocates ? 1U : 0U;
    most = std::max(most, now);
    now -= event.allocates ? 0U : 1U;
  }
  expect(most == log.most_live, "another number of allocations at once");
  return true;
}

}  // namespace unimem::fuzz
