#include "processes/processes_model.hpp"

#include "processes/peer_commands.hpp"

#include <fmt/format.h>

#include <algorithm>

// What chance has a process do, and what that must answer and change.

namespace unimem::testing {

std::string ProcessesModel::words(Part part) {
  return fmt::format("{} {}", part.range.begin, part.range.size());
}

ProcessesModel::Part ProcessesModel::any_part(std::size_t most) {
  auto const buffer = below(buffers);
  auto const size = contents_[buffer].size();
  auto const limit = std::min(size, most);
  // Mostly small ones, of which there are more than the book tells apart.
  auto const kind = below(10);
  auto const longest = kind < 7   ? std::min<std::size_t>(limit, 100)
                       : kind < 9 ? std::min<std::size_t>(limit, 2000)
                                  : limit;
  auto const count = 1 + below(longest);
  auto const begin = below(size - count + 1);
  return {buffer, {begin, begin + count}};
}

std::string ProcessesModel::any_queue() {
  constexpr std::array queues{"sim", "sim2", "cpu"};
  return queues[below(queues.size())];
}

std::string ProcessesModel::bytes_told(Part part) const {
  std::vector<std::uint8_t> bytes;
  for (auto i = part.range.begin; i < part.range.end; ++i) bytes.push_back(contents_[part.buffer][i].value);
  return "ok " + told(bytes);
}

void ProcessesModel::write_pattern(Part part, std::uint32_t seed) {
  for (std::size_t i = 0; i < part.range.size(); ++i) {
    contents_[part.buffer][part.range.begin + i].value = pattern_byte(seed, i);
  }
}

ProcessesModel::Operation ProcessesModel::a_read(std::string const& how, Part part) const {
  Operation made;
  made.line = fmt::format("@{} {} {}", part.buffer, how, words(part));
  made.reads = {part};
  made.expects = [this, part] { return bytes_told(part); };
  return made;
}

ProcessesModel::Operation ProcessesModel::a_write(std::size_t /*process*/, std::size_t most) {
  Operation made;
  auto const part = any_part(most);
  auto const seed = any_seed();
  made.writes = {part};
  made.changes = [this, part, seed] { write_pattern(part, seed); };
  switch (below(5)) {
    case 0:
      made.line = fmt::format("@{} put {} {}", part.buffer, words(part), seed);
      break;
    case 1:
      made.line = fmt::format("@{} fill {} {}", part.buffer, words(part), seed % 256);
      made.changes = [this, part, seed] {
        for (auto i = part.range.begin; i < part.range.end; ++i) {
          contents_[part.buffer][i].value = static_cast<std::uint8_t>(seed % 256);
        }
      };
      break;
    case 2:
    case 3:
      made.line = fmt::format("@{} put_on {} {} {}", part.buffer, any_queue(), words(part), seed);
      made.unsettled = true;
      break;
    default:
      made.line = fmt::format("@{} add_on {} {} {}", part.buffer, any_queue(), words(part), seed % 256);
      made.unsettled = true;
      made.reads = {part};
      made.changes = [this, part, seed] {
        for (auto i = part.range.begin; i < part.range.end; ++i) {
          auto& byte = contents_[part.buffer][i].value;
          byte = static_cast<std::uint8_t>(byte + seed % 256);
        }
      };
  }
  return made;
}

ProcessesModel::Operation ProcessesModel::a_copy(bool on_device, std::size_t most) {
  auto const from = any_part(std::min(most, contents_[1].size()));
  Part to;
  for (;;) {
    to.buffer = below(buffers);
    auto const begin = below(contents_[to.buffer].size() - from.range.size() + 1);
    to.range = {begin, begin + from.range.size()};
    bool const onto_itself =
        to.buffer == from.buffer && (!on_device ? to.range == from.range : meet(to.range, from.range));
    if (!onto_itself) break;
    if (from.range.size() * 3 > contents_[from.buffer].size()) to.buffer = 1 - from.buffer;
    if (on_device && to.buffer != from.buffer && from.range.size() <= contents_[to.buffer].size()) {
      to.range = {0, from.range.size()};
      break;
    }
  }
  Operation made;
  made.line = on_device
                  ? fmt::format("copy_on {} {} {} {} {}", any_queue(), from.buffer, words(from), to.buffer, words(to))
                  : fmt::format("copy {} {} {} {}", from.buffer, words(from), to.buffer, words(to));
  made.reads = {from};
  made.writes = {to};
  made.unsettled = on_device;
  made.changes = [this, from, to] {
    auto const before = contents_[from.buffer];
    for (std::size_t i = 0; i < to.range.size(); ++i) {
      contents_[to.buffer][to.range.begin + i].value = before[from.range.begin + i].value;
    }
  };
  return made;
}

ProcessesModel::Operation ProcessesModel::without_turn(Part part) {
  constexpr std::array commands{"prefetch", "to_device", "to_host_async", "synchronize"};
  Operation made;
  made.line = fmt::format("@{} {} {}", part.buffer, commands[below(commands.size())], words(part));
  made.looks = {part};
  return made;
}

ProcessesModel::Operation ProcessesModel::any_operation(std::size_t process) {
  auto const limit = processes_[process].device_limit;
  auto const most = limit == 0 ? contents_[0].size() : limit / 8;
  constexpr std::array reads{"see", "see_view", "see_mapped", "see_on sim", "see_on sim2", "see_on cpu"};
  switch (below(10)) {
    case 0:
    case 1:
    case 2:
      return a_read(reads[below(reads.size())], any_part(most));
    case 3:
    case 4:
    case 5:
    case 6:
      return a_write(process, most);
    case 7:
      return a_copy(false, most);
    case 8:
      return a_copy(true, most);
    default:
      break;
  }
  if (one_in(3)) {
    Operation made;
    auto const what = below(3);
    made.line = what == 0 ? std::string("await") : fmt::format("@{} evict", below(buffers));
    return made;
  }
  if (one_in(3)) {
    auto made = a_read("to_host", any_part(most));
    made.expects = [] { return std::string("ok"); };
    return made;
  }
  return without_turn(any_part(most));
}

}  // namespace unimem::testing
