#include "processes/processes_model.hpp"

#include "processes/peer_commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

namespace unimem::testing {
namespace {

constexpr auto lost = "error DataLost";
/// Long enough that what is not in the way would be through.
constexpr std::chrono::milliseconds a_while{15};

}  // namespace

ProcessesModel::ProcessesModel(std::uint64_t seed) : random_(seed), seed_(seed) {
  constexpr std::array<std::size_t, 3> sizes{4096, 16384, 65536};
  processes_[own].here = std::make_unique<OwnProcess>();
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    auto const size = buffer == 0 ? sizes[below(sizes.size())] : 4096;
    auto const published = ask(own, fmt::format("@{} publish {} {}", buffer, size, one_in(2) ? 1 : 0));
    if (!published.starts_with("ok ")) fail(published);
    ids_[buffer] = published.substr(3);
    contents_[buffer].resize(size);
    for (std::size_t i = 0; i < size; ++i) contents_[buffer][i].value = static_cast<std::uint8_t>(i + 1);
    processes_[own].open[buffer] = true;
  }
  for (std::size_t process = 1; process < processes; ++process) replace(process);
}

void ProcessesModel::fail(std::string const& what) const {
  auto text = fmt::format("seed {}, operation {}: {}\n", seed_, counts_.operations, what);
  auto const shown = std::min<std::size_t>(log_.size(), 60);
  for (auto line = log_.end() - static_cast<std::ptrdiff_t>(shown); line != log_.end(); ++line) text += *line + '\n';
  throw std::runtime_error(text);
}

std::string ProcessesModel::ask(std::size_t process, std::string const& line) {
  log_.push_back(fmt::format("{}: {}", process, line));
  processes_[process].tell(line);
  try {
    return processes_[process].answer();
  } catch (std::runtime_error const& error) {
    fail(error.what());
  }
}

void ProcessesModel::expect(std::size_t process, std::string const& line, std::string const& wanted) {
  auto const answer = ask(process, line);
  if (answer != wanted) fail(fmt::format("'{}' instead of '{}'", answer, wanted));
}

void ProcessesModel::replace(std::size_t process) {
  auto& one = processes_[process];
  one = {};
  one.peer = std::make_unique<PeerProcess>();
  // The last one has so little memory on its device that copies there go, or are of windows.
  if (process == processes - 1) {
    one.device_limit = 24576;
    expect(process, fmt::format("limit {}", one.device_limit), "ok");
  }
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    expect(process, fmt::format("@{} open {}", buffer, ids_[buffer]), fmt::format("ok {}", contents_[buffer].size()));
    one.open[buffer] = true;
  }
}

bool ProcessesModel::any_lost(std::vector<Part> const& parts) const {
  return std::ranges::any_of(parts, [&](Part const& part) {
    auto const& bytes = contents_[part.buffer];
    return std::any_of(bytes.begin() + static_cast<std::ptrdiff_t>(part.range.begin),
                       bytes.begin() + static_cast<std::ptrdiff_t>(part.range.end),
                       [](Byte const& byte) { return byte.lost; });
  });
}

bool ProcessesModel::meets_own_mapping(std::size_t process, Operation const& operation) const {
  return std::ranges::any_of(processes_[process].held, [&](Held const& held) {
    auto const is_at = [&](Part const& part) {
      return part.buffer == held.part.buffer && meet(part.range, held.part.range);
    };
    return std::ranges::any_of(operation.writes, is_at) ||
           (held.writes && std::ranges::any_of(operation.reads, is_at)) ||
           (held.writes && std::ranges::any_of(operation.looks, is_at));
  });
}

std::vector<std::size_t> ProcessesModel::in_the_way(std::size_t process, Operation const& operation) const {
  std::vector<std::size_t> found;
  for (std::size_t other = 0; other < processes; ++other) {
    if (other == process) continue;
    bool const is = std::ranges::any_of(processes_[other].held, [&](Held const& held) {
      auto const is_at = [&](Part const& part) {
        return part.buffer == held.part.buffer && meet(part.range, held.part.range);
      };
      return std::ranges::any_of(operation.writes, is_at) ||
             (held.writes && std::ranges::any_of(operation.reads, is_at));
    });
    if (is) found.push_back(other);
  }
  return found;
}

bool ProcessesModel::meets(Operation const& operation, Operation const& other) const {
  auto const all = [](Operation const& one) {
    auto parts = one.reads;
    parts.insert(parts.end(), one.writes.begin(), one.writes.end());
    parts.insert(parts.end(), one.looks.begin(), one.looks.end());
    return parts;
  };
  auto const theirs = all(other);
  return std::ranges::any_of(all(operation), [&](Part const& part) {
    return std::ranges::any_of(
        theirs, [&](Part const& one) { return one.buffer == part.buffer && meet(one.range, part.range); });
  });
}

void ProcessesModel::finish(std::size_t process, Operation const& operation, std::string const& answer) {
  ++counts_.operations;
  bool const cannot = any_lost(operation.reads);
  // Without a turn it is not known yet that a process is dead, nor that another is just writing what was lost.
  bool const may_be_refused = std::ranges::any_of(operation.looks, [&](Part const& part) {
    auto const bytes = std::span(contents_[part.buffer]).subspan(part.range.begin, part.range.size());
    return std::ranges::any_of(bytes, [&](Byte const& byte) { return byte.lost || byte.unsettled != processes; });
  });
  if (may_be_refused && answer.starts_with(lost)) {
    ++counts_.lost;
  } else if (cannot) {
    ++counts_.lost;
    if (!answer.starts_with(lost)) fail(fmt::format("{}: '{}' of what is lost", operation.line, answer));
  } else if (auto const wanted = operation.expects(); answer != wanted) {
    fail(fmt::format("{}: '{}' instead of '{}'", operation.line, answer, wanted));
  }
  auto const settle_at = [&](Part const& part) {
    for (auto i = part.range.begin; i < part.range.end; ++i) {
      auto& who = contents_[part.buffer][i].unsettled;
      if (who != process) who = processes;
    }
  };
  std::ranges::for_each(operation.reads, settle_at);
  std::ranges::for_each(operation.writes, settle_at);
  if (cannot) return;
  operation.changes();
  for (auto const& part : operation.writes) {
    for (auto i = part.range.begin; i < part.range.end; ++i) {
      auto& byte = contents_[part.buffer][i];
      byte.lost = false;
      if (operation.unsettled) byte.unsettled = process;
    }
  }
}

void ProcessesModel::run(std::size_t process, Operation const& operation) {
  finish(process, operation, ask(process, operation.line));
}

void ProcessesModel::run_blocked(std::size_t process, Operation const& operation) {
  ++counts_.blocked;
  auto& one = processes_[process];
  auto const holders_before = in_the_way(process, operation);
  // Or, when one of them is killed, it would be looked for what it has left while this operation is at it.
  for (auto const holder : holders_before) settle_process(holder);
  log_.push_back(fmt::format("{}: {} (blocked)", process, operation.line));
  one.tell(operation.line);
  if (one.answers_within(a_while)) fail(fmt::format("'{}' while another process is at it", one.answer()));
  for (auto tries = below(4); tries != 0; --tries) {
    auto const other = below(processes);
    if (other == process || std::ranges::count(holders_before, other) != 0) continue;
    auto const beside = any_operation(other);
    if (meets(beside, operation) || meets_own_mapping(other, beside) || !in_the_way(other, beside).empty()) continue;
    bool const open = std::ranges::all_of(processes_[other].open, [](bool is) { return is; });
    if (open) run(other, beside);
  }
  for (;;) {
    auto const holders = in_the_way(process, operation);
    if (holders.empty()) break;
    if (one.answers_within(std::chrono::milliseconds(0))) {
      fail(fmt::format("'{}' while another process is still at it", one.answer()));
    }
    auto const holder = holders[below(holders.size())];
    // Of what it may still be bringing this process is asked, which cannot answer while it waits itself.
    bool const may_die = holder != own && (process != own || !may_be_bringing(holder));
    bool const dies = may_die && one_in(4);
    if (dies) {
      kill(holder);
    } else {
      end_mapping(holder, below(processes_[holder].held.size()), false);
    }
  }
  std::string answer;
  try {
    answer = one.answer();
  } catch (std::runtime_error const& error) {
    fail(error.what());
  }
  finish(process, operation, answer);
  for (std::size_t other = 1; other < processes; ++other) {
    if (!processes_[other].peer) replace(other);
  }
}

void ProcessesModel::map(std::size_t process) {
  auto& one = processes_[process];
  auto const part = any_part(contents_[0].size() / 4);
  bool const has_one = std::ranges::any_of(one.held, [&](Held const& held) { return held.part.buffer == part.buffer; });
  if (has_one) return;
  constexpr std::array modes{"read", "read_write", "discard"};
  auto const mode = below(modes.size());
  auto made = a_read(fmt::format("map_as {}", modes[mode]), part);
  if (mode != 0) made.writes = {part};
  if (mode == 2) {
    made.reads.clear();
    made.expects = [] { return std::string("ok"); };
  }
  if (meets_own_mapping(process, made)) return;
  if (any_lost(made.reads)) {
    // It would be refused when its turn came.
    if (in_the_way(process, made).empty()) run(process, made);
    return;
  }
  if (!in_the_way(process, made).empty()) return;
  auto const lost_before = any_lost({part});
  auto const before = contents_[part.buffer];
  run(process, made);
  // It is not written yet; but what devices were still bringing there has come.
  for (auto i = part.range.begin; lost_before && i < part.range.end; ++i) {
    auto& byte = contents_[part.buffer][i];
    byte.value = before[i].value;
    byte.lost = before[i].lost;
  }
  one.held.push_back({mode != 0, mode == 2, part});
}

void ProcessesModel::end_mapping(std::size_t process, std::size_t index, bool by_death) {
  auto& one = processes_[process];
  auto const held = one.held[index];
  one.held.erase(one.held.begin() + static_cast<std::ptrdiff_t>(index));
  auto& bytes = contents_[held.part.buffer];
  if (by_death) {
    for (auto i = held.part.range.begin; held.writes && i < held.part.range.end; ++i) bytes[i].lost = true;
    return;
  }
  ++counts_.operations;
  if (!held.writes) {
    auto const sees = fmt::format("@{} see_held", held.part.buffer);
    expect(process, sees, bytes_told(held.part));
    expect(process, fmt::format("@{} drop", held.part.buffer), "ok");
    return;
  }
  if (held.discards || !one_in(4)) {
    auto const seed = any_seed();
    expect(process, fmt::format("@{} poke_pattern {}", held.part.buffer, seed), "ok");
    write_pattern(held.part, seed);
  }
  for (auto i = held.part.range.begin; i < held.part.range.end; ++i) bytes[i].lost = false;
  expect(process, fmt::format("@{} unmap", held.part.buffer), "ok");
}

void ProcessesModel::kill(std::size_t process) {
  ++counts_.killed;
  log_.push_back(fmt::format("{}: killed", process));
  auto& one = processes_[process];
  one.peer->kill();
  one.peer.reset();
  while (!one.held.empty()) end_mapping(process, 0, true);
  // What it was bringing from devices has come, or is lost.
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    auto& bytes = contents_[buffer];
    for (std::size_t begin = 0; begin < bytes.size();) {
      auto const is_open = [&](Byte& byte) {
        return std::exchange(byte.unsettled, byte.unsettled == process ? processes : byte.unsettled) == process &&
               !byte.lost;
      };
      if (!is_open(bytes[begin])) {
        ++begin;
        continue;
      }
      auto end = begin + 1;
      while (end < bytes.size() && is_open(bytes[end])) ++end;
      probe({buffer, {begin, end}});
      begin = end;
    }
  }
}

bool ProcessesModel::maps_to_write(std::size_t process, std::size_t buffer, std::size_t byte) const {
  return std::ranges::any_of(processes_[process].held, [&](Held const& held) {
    return held.writes && held.part.buffer == buffer && held.part.range.contains({byte, byte + 1});
  });
}

bool ProcessesModel::may_be_bringing(std::size_t process) const {
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    for (std::size_t i = 0; i < contents_[buffer].size(); ++i) {
      if (contents_[buffer][i].unsettled == process && !maps_to_write(process, buffer, i)) return true;
    }
  }
  return false;
}

void ProcessesModel::settle_process(std::size_t process) {
  if (process == own) return;
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    auto const& bytes = contents_[buffer];
    for (std::size_t begin = 0; begin < bytes.size(); ++begin) {
      auto end = begin;
      while (end < bytes.size() && bytes[end].unsettled == process && !maps_to_write(process, buffer, end)) ++end;
      if (end != begin) run(own, a_read("see", {buffer, {begin, end}}));
      begin = end;
    }
  }
}

void ProcessesModel::probe(Part part) {
  auto const answer = ask(own, fmt::format("@{} see {}", part.buffer, words(part)));
  if (!answer.starts_with(lost)) {
    if (any_lost({part})) fail("what is lost was seen");
    if (answer != bytes_told(part)) fail(fmt::format("'{}' instead of '{}'", answer, bytes_told(part)));
    return;
  }
  if (part.range.size() == 1) {
    contents_[part.buffer][part.range.begin].lost = true;
    return;
  }
  auto const middle = part.range.begin + part.range.size() / 2;
  probe({part.buffer, {part.range.begin, middle}});
  probe({part.buffer, {middle, part.range.end}});
}

void ProcessesModel::close_and_open(std::size_t process) {
  if (process == own || !processes_[process].held.empty()) return;
  ++counts_.reopened;
  auto const buffer = below(buffers);
  expect(process, fmt::format("@{} close", buffer), "ok");
  expect(process, fmt::format("@{} open {}", buffer, ids_[buffer]), fmt::format("ok {}", contents_[buffer].size()));
}

/// Writes what is lost, or there would be less and less to look at.
void ProcessesModel::heal() {
  for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
    auto const& bytes = contents_[buffer];
    for (std::size_t begin = 0; begin < bytes.size(); ++begin) {
      if (!bytes[begin].lost) continue;
      auto end = begin;
      while (end < bytes.size() && bytes[end].lost) ++end;
      Part const part{buffer, {begin, end}};
      auto const seed = any_seed();
      Operation made;
      made.line = fmt::format("@{} put {} {}", buffer, words(part), seed);
      made.writes = {part};
      made.changes = [&] { write_pattern(part, seed); };
      auto const process = below(processes);
      if (!meets_own_mapping(process, made) && in_the_way(process, made).empty()) run(process, made);
      begin = end;
    }
  }
}

void ProcessesModel::settle(std::size_t buffer) {
  for (std::size_t process = 0; process < 2; ++process) {
    auto const all = a_read("see", {buffer, {0, contents_[buffer].size()}});
    if (in_the_way(process, all).empty() && !meets_own_mapping(process, all)) run(process, all);
  }
}

void ProcessesModel::check_that_reads_move_nothing(std::size_t process) {
  if (processes_[process].device_limit != 0) return;
  auto const part = any_part(contents_[0].size());
  auto const unsettled = [](Byte const& byte) { return byte.unsettled != processes; };
  auto const here = a_read("see", part), there = a_read("see_on sim", part);
  if (!in_the_way(process, here).empty() || meets_own_mapping(process, here) || any_lost({part})) return;
  settle(part.buffer);
  if (std::ranges::any_of(contents_[part.buffer], unsettled)) return;
  run(process, here);
  run(process, there);
  auto const moved = ask(process, fmt::format("@{} moved", part.buffer));
  run(process, there);
  run(process, here);
  expect(process, fmt::format("@{} moved", part.buffer), moved);
}

void ProcessesModel::check_all() {
  ++counts_.checked;
  constexpr std::array ways{"see", "see_view", "see_mapped", "see_on sim", "see_on sim2", "see_on cpu"};
  for (std::size_t process = 0; process < processes; ++process) {
    for (std::size_t buffer = 0; buffer < buffers; ++buffer) {
      auto const limit = processes_[process].device_limit;
      auto const most = limit == 0 ? contents_[buffer].size() : limit / 4;
      for (std::size_t begin = 0; begin < contents_[buffer].size(); begin += most) {
        Part const part{buffer, {begin, std::min(begin + most, contents_[buffer].size())}};
        auto const read = a_read(ways[below(ways.size())], part);
        if (in_the_way(process, read).empty() && !meets_own_mapping(process, read)) run(process, read);
      }
    }
  }
}

void ProcessesModel::step() {
  auto const process = below(processes);
  auto& one = processes_[process];
  switch (below(40)) {
    case 0:
    case 1:
    case 2:
      return map(process);
    case 3:
    case 4:
      if (!one.held.empty()) end_mapping(process, below(one.held.size()), false);
      return;
    case 5:
      if (one_in(3) && process != own) {
        kill(process);
        replace(process);
      }
      return;
    case 6:
      return close_and_open(process);
    case 7:
      return check_that_reads_move_nothing(process);
    case 8:
      return one_in(3) ? check_all() : heal();
    default:
      break;
  }
  auto const made = any_operation(process);
  if (meets_own_mapping(process, made)) return;
  if (in_the_way(process, made).empty()) return run(process, made);
  if (one_in(3)) run_blocked(process, made);
}

}  // namespace unimem::testing
