#include <unimem/kernel/launch.hpp>

#include <unimem/core/log.hpp>

#include "buffer/stale_views.hpp"
#include "buffer/written_map.hpp"
#include "core/check_level.hpp"
#include "core/stack.hpp"
#include "device/host_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {

/// One launch's part in the maps of what was written, by argument.
class Fills {
 public:
  void add(std::size_t argument, std::shared_ptr<WrittenMap> map, ByteRange range) {
    fills_.push_back({argument, range, std::move(map), nullptr});
  }
  void begin() {
    for (auto& one : fills_) one.fill = one.map->begin_fill(one.range);
  }
  /// `left` are bytes of the buffer. Does nothing for what has not begun: launches of a graph.
  void end(std::size_t argument, ByteRanges const& left) {
    for (auto& one : fills_) {
      if (one.argument == argument && one.fill) one.map->end_fill(*std::exchange(one.fill, nullptr), left);
    }
  }

 private:
  struct One {
    std::size_t argument;
    ByteRange range;
    std::shared_ptr<WrittenMap> map;
    std::shared_ptr<WrittenMap::Fill> fill;
  };
  std::vector<One> fills_;
};

void CheckedProgram::begin() const {
  fills->begin();
}

namespace {

/// One argument as the launching thread knew it: by the time the kernel runs the buffer may be gone.
struct Checked {
  BufferCore const* buffer = nullptr;  ///< compared only
  std::string name;
  ByteRange range;
  Intent intent = Intent::read;
  std::shared_ptr<StaleViews> views;
};

/// Differs from position to position, so that a kernel hardly ever writes it by accident: 2^-32 for four bytes.
std::byte poison(std::size_t position) {
  auto word = (static_cast<std::uint64_t>(position / 8) + 1) * 0x9E3779B97F4A7C15U;
  word = (word ^ (word >> 30U)) * 0xBF58476D1CE4E5B9U;
  word ^= word >> 27U;
  return static_cast<std::byte>(word >> (position % 8 * 8));
}

/// A copy of an operand between two red zones, with the operand's alignment.
class Shadow {
 public:
  Shadow(HostArgument real, bool reads, bool writes)
      : real_(static_cast<std::byte*>(real.data)), bytes_(real.bytes), reads_(reads), writes_(writes) {
    zone_ = std::clamp(bytes_, std::size_t{4096}, std::size_t{1} << 20U);
    auto const skew = reinterpret_cast<std::uintptr_t>(real_) % alignment;
    memory_.resize(bytes_ + 2 * zone_ + 2 * alignment);
    auto const base = reinterpret_cast<std::uintptr_t>(memory_.data()) % alignment;
    begin_ = zone_ + (alignment - (zone_ + base) % alignment) + skew;
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = poison(i);
    if (reads_ && bytes_ > 0) std::memcpy(data(), real_, bytes_);
  }

  [[nodiscard]] std::byte* data() { return memory_.data() + begin_; }
  [[nodiscard]] std::size_t end() const { return begin_ + bytes_; }
  [[nodiscard]] bool is_of(HostArgument real) const { return real_ == real.data && bytes_ == real.bytes; }

  /// Calls `report(what, range)`, in bytes of `whole`'s buffer, for every kind of mistake. Returns what of it should
  /// have been written and was not.
  template <class Report>
  [[nodiscard]] ByteRanges compare(ByteRange whole, Report const& report) {
    ByteRanges left;
    ByteRange outside{SIZE_MAX, 0};
    auto const touch = [&](std::size_t i) {
      if (memory_[i] != poison(i)) outside = {std::min(outside.begin, i), i + 1};
    };
    for (auto i = end(); i < memory_.size(); ++i) touch(i);
    if (outside.end != 0) {
      report("were written, beyond the operand's end",
             {whole.end + (outside.begin - end()), whole.end + (outside.end - end())});
    }
    outside = {SIZE_MAX, 0};
    for (std::size_t i = 0; i < begin_; ++i) touch(i);
    if (outside.end != 0) {
      log_before(begin_ - outside.begin, begin_ - outside.end, report, whole);
    }
    if (!writes_) {
      ByteRange changed{SIZE_MAX, 0};
      for (std::size_t i = 0; i < bytes_; ++i) {
        if (data()[i] != real_[i]) changed = {std::min(changed.begin, i), i + 1};
      }
      if (changed.end != 0)
        report("were written, and passed as read", {whole.begin + changed.begin, whole.begin + changed.end});
    } else if (!reads_) {
      for (std::size_t i = 0; i + 4 <= bytes_; i += 4) {
        bool const same = std::ranges::all_of(std::array<std::size_t, 4>{0, 1, 2, 3},
                                              [&](std::size_t k) { return data()[i + k] == poison(begin_ + i + k); });
        if (same) left.add({whole.begin + i, whole.begin + i + 4});
      }
      if (!left.empty()) {
        report("were passed as write, and not all of them were written",
               {left.ranges().front().begin, left.ranges().back().end});
      }
    }
    return left;
  }

  void put_back() {
    if (writes_ && bytes_ > 0) std::memcpy(real_, data(), bytes_);
  }

 private:
  static constexpr std::size_t alignment = 4096;

  template <class Report>
  static void log_before(std::size_t from, std::size_t to, Report const& report, ByteRange whole) {
    report(fmt::format("are where bytes {} to {} before the operand were written", from, to),
           {whole.begin, whole.begin});
  }

  std::byte* real_;
  std::size_t bytes_, zone_ = 0, begin_ = 0;
  bool reads_, writes_;
  std::vector<std::byte> memory_;
};

void complain(std::string_view kernel, std::string_view buffer, ByteRange range, std::string_view what,
              ProgramPlace const& place) {
  log(LogLevel::error, fmt::format("kernel '{}': bytes [{}, {}) of {} {}{}", kernel, range.begin, range.end, buffer,
                                   what, describe_place("launched from", place)));
}

void run_checked(HostProgram const& program, Range range, std::span<const Checked> known,
                 std::span<const HostArgument> given, ProgramPlace const& place, Fills& fills) {
  std::vector<Shadow> shadows;
  std::vector<KernelArgument> arguments(given.size());
  std::vector<std::size_t> first;  // the argument that each of them was made for
  shadows.reserve(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto& argument = arguments[i];
    if (known[i].buffer == nullptr) {
      argument.kind = KernelArgument::Kind::scalar;
      argument.scalar_bytes = given[i].bytes;
      std::memcpy(argument.scalar.data(), given[i].data, given[i].bytes);
      continue;
    }
    // In-place use: operands of one range see each other.
    auto found = std::ranges::find_if(shadows, [&](Shadow const& one) { return one.is_of(given[i]); });
    if (found == shadows.end()) {
      bool reads = false, writes = false;
      for (std::size_t k = 0; k < given.size(); ++k) {
        if (known[k].buffer == nullptr || given[k].data != given[i].data || given[k].bytes != given[i].bytes) continue;
        reads = reads || known[k].intent != Intent::write;
        writes = writes || known[k].intent != Intent::read;
      }
      shadows.emplace_back(given[i], reads, writes);
      first.push_back(i);
      found = shadows.end() - 1;
    }
    argument.memory = {reinterpret_cast<std::uintptr_t>(found->data()), 0, given[i].bytes};
    argument.writes = known[i].intent != Intent::read;
  }
  program.run(range, arguments);
  for (std::size_t i = 0; i < shadows.size(); ++i) {
    auto const& of = known[first[i]];
    auto const left = shadows[i].compare(of.range, [&](std::string_view what, ByteRange bytes) {
      complain(program.name(), of.name, bytes, what, place);
    });
    shadows[i].put_back();
    fills.end(first[i], left);
  }
}

void run_plain(HostProgram const& program, Range range, std::span<const Checked> known,
               std::span<const HostArgument> given) {
  std::vector<KernelArgument> arguments(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    bool const scalar = known[i].buffer == nullptr;
    arguments[i].kind = scalar ? KernelArgument::Kind::scalar : KernelArgument::Kind::memory;
    arguments[i].scalar_bytes = scalar ? given[i].bytes : 0;
    if (scalar) std::memcpy(arguments[i].scalar.data(), given[i].data, given[i].bytes);
    if (!scalar) arguments[i].memory = {reinterpret_cast<std::uintptr_t>(given[i].data), 0, given[i].bytes};
  }
  program.run(range, arguments);
}

}  // namespace

CheckedProgram checked_program(std::shared_ptr<Program const> const& program, Device& device, std::string_view kernel,
                               Range range, std::span<const LaunchArgument> arguments) {
  if (check_level() < 2 || !device.info().runs_host_form || range.items() == 0) return {};
  auto const inner = as_host_program(program, device);
  auto const place = ProgramPlace::here();
  std::vector<Checked> known;
  auto const fills = std::make_shared<Fills>();
  for (auto const& argument : arguments) {
    auto const& [buffer, bytes, intent] = argument.buffer.operand;
    if (buffer == nullptr) {
      known.emplace_back();
      continue;
    }
    known.push_back({buffer,
                     buffer->name().empty() ? "a buffer without a name" : fmt::format("buffer '{}'", buffer->name()),
                     bytes, intent, buffer->stale_views()});
    if (intent == Intent::write) fills->add(known.size() - 1, buffer->written_map(), bytes);
  }
  bool apart = true;
  for (std::size_t i = 0; i < known.size(); ++i) {
    for (std::size_t k = i + 1; k < known.size(); ++k) {
      auto const &a = known[i], &b = known[k];
      if (a.buffer == nullptr || a.buffer != b.buffer || a.range == b.range) continue;
      ByteRange const both{std::max(a.range.begin, b.range.begin), std::min(a.range.end, b.range.end)};
      if (both.begin >= both.end || (a.intent == Intent::read && b.intent == Intent::read)) continue;
      complain(kernel, a.name, both,
               fmt::format("are in operands {} and {}, which overlap in part, and one is written", i + 1, k + 1),
               place);
      apart = false;
    }
  }
  HostLoop loop = [inner, range, known, place, apart, fills](Range, std::size_t, std::size_t,
                                                             std::span<const HostArgument> given) {
    apart ? run_checked(*inner, range, known, given, place, *fills) : run_plain(*inner, range, known, given);
    // What copied these operands' bytes from the host has ended before this began.
    for (auto const& one : known) {
      if (one.views) one.views->close_if_done();
    }
  };
  auto checked = device.compile({std::string(kernel), {}, std::move(loop)});
  return {std::move(checked), fills};
}

}  // namespace unimem::detail
