#include "mutants.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "buffer/backed.hpp"
#include "buffer/evicting.hpp"
#include "buffer/gate_from_beside.hpp"
#include "buffer/held_page.hpp"
#include "buffer/model.hpp"
#include "buffer/recycling.hpp"
#include "buffer/reuse.hpp"
#include "buffer/scarce_room.hpp"
#include "buffer/spilled.hpp"
#include "buffer/windowed.hpp"
#include "device/gate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace unimem::detail {

Mutant active_mutant = Mutant::none;

}  // namespace unimem::detail

namespace unimem::testing {
namespace {

using detail::Mutant;

constexpr std::size_t limit = 40'000;  ///< operations of a run within which a fault must be noticed
constexpr unsigned first_seed = 2026;

struct Finding {
  std::string where;
  std::string what;
};

std::optional<Finding> found_by_model(unsigned seed) {
  std::size_t operation = 0;
  try {
    Model model({.seed = seed, .spills = seed % 2 == 1});
    for (operation = 1; operation <= limit; ++operation) model.step();
    model.finish();
  } catch (std::exception const& violation) {
    return Finding{"the model, seed " + std::to_string(seed) + ", operation " + std::to_string(operation),
                   violation.what()};
  }
  return std::nullopt;
}

/// Where what a mutant does is looked for: a device, and a manager whose buffers are at home there.
struct Scene {
  explicit Scene(Device& home) {
    options.manager = &manager;
    options.device = &home;
  }

  [[nodiscard]] UnifiedBuffer<std::uint32_t> buffer(std::size_t count) const {
    return UnifiedBuffer<std::uint32_t>(Shape(count), options);
  }

  /// Elements of 1, which only the device has as far as `value` at `at` goes.
  [[nodiscard]] UnifiedBuffer<std::uint32_t> changed_on_device(std::size_t at, std::uint32_t value) {
    auto result = buffer(100);
    result.fill(1);
    auto const lease = result.device();
    lease.data()[at] = value;
    return result;
  }

  /// Whether the host's bytes are raised as an error, which is told once.
  static bool told_of_a_failure(UnifiedBuffer<std::uint32_t> const& of) {
    try {
      static_cast<void>(of.host_view());
      return false;
    } catch (DeviceError const&) {
      return true;
    }
  }

  MemoryManager manager;
  BufferOptions options;
};

/// What is wrong with elements that should all be as `expected(index)` says.
template <class Expected>
std::optional<Finding> strange_word(DeviceSpan<const std::uint32_t> const& lease, Expected expected) {
  for (std::size_t i = 0; i < lease.size(); ++i) {
    if (lease.data()[i] != expected(i))
      return Finding{"a test of words", "word " + std::to_string(i) + " is another's"};
  }
  return std::nullopt;
}

/// Three blocks' worth between devices that do not reach each other, by way of two blocks: the third must wait until
/// the first has been sent on, which here takes a while.
std::optional<Finding> found_by_staging() {
  constexpr std::size_t words = (std::size_t{12} << 20) / sizeof(std::uint32_t);
  static auto& to = make_sim({.memory_bytes = std::size_t{32} << 20, .peer = false});
  static auto& from = make_sim({.memory_bytes = std::size_t{32} << 20, .peer = false});
  Scene scene(from);
  auto buffer = scene.buffer(words);
  {
    auto const lease = buffer.device_overwrite(from);
    for (std::size_t i = 0; i < words; ++i) lease.data()[i] = static_cast<std::uint32_t>(i);
  }
  std::optional<Gate> gate{to.default_queue()};
  auto const there = buffer.prefetch(to);
  // With the fault all three come down at once; without it the third waits for the first to be sent on.
  if (detail::active_mutant == Mutant::staging_recycled_early) from.synchronize();
  gate.reset();
  there.wait();
  return strange_word(buffer.device_view(to), [](std::size_t i) { return i; });
}

/// Two queues with one staging block each: the first, held up, keeps its block until it has been sent on.
std::optional<Finding> found_by_blocks_in_use() {
  constexpr std::size_t words = (std::size_t{2} << 20) / sizeof(std::uint32_t);
  static auto& to = make_sim({.memory_bytes = std::size_t{32} << 20, .staging_threshold = std::size_t{1} << 20});
  auto held = to.create_queue(), free = to.create_queue();
  Scene scene(to);
  auto first = scene.buffer(words), second = scene.buffer(words);
  first.fill(1);
  second.fill(2);
  std::optional<Gate> gate{held};
  auto& host = device("cpu");
  auto const staged = host.transfers().device_to_device_copies;
  auto const later = first.prefetch(held);
  while (host.transfers().device_to_device_copies == staged) std::this_thread::yield();
  second.prefetch(free).wait();
  gate.reset();
  later.wait();
  return strange_word(first.device_view(to), [](std::size_t) { return 1U; });
}

/// A copy that failed on its way to the host, and an operation that has nothing to do with it.
std::optional<Finding> found_by_arrival() {
  static auto& from = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(from);
  auto buffer = scene.changed_on_device(0, 2);
  set_sim_faults(from, {.fail_download = 1});
  static_cast<void>(buffer.sync_to_host_async().wait_for_error());
  static_cast<void>(buffer.core().fetch({0, 0}));
  set_sim_faults(from, {});
  if (Scene::told_of_a_failure(buffer)) return std::nullopt;
  return Finding{"the arrival test", "what failed to arrive was read"};
}

/// Work whose input failed to arrive, so that it never began: what only the device has is what it was.
std::optional<Finding> found_by_need() {
  static auto& on = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(on);
  auto input = scene.buffer(100), changed = scene.changed_on_device(0, 2);
  input.fill(1);
  set_sim_faults(on, {.fail_upload = 1});
  std::array const operands{Operand{&input.core(), {0, 400}, Intent::read},
                            Operand{&changed.core(), {0, 400}, Intent::read_write}};
  auto const event = use_on_device(on.default_queue(), operands,
                                   [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
                                     return on.default_queue().copy(memory[1], memory[0], 400, needs);
                                   });
  static_cast<void>(event.wait_for_error());
  set_sim_faults(on, {});
  static_cast<void>(Scene::told_of_a_failure(changed));
  try {
    if (changed.at(0) == 2) return std::nullopt;
    return Finding{"the need test", "what nothing touched has changed"};
  } catch (std::exception const& error) {
    return Finding{"the need test", error.what()};
  }
}

/// Bytes that only the device has are on their way to the host, and fail; meanwhile what lies around them is brought
/// to the device, which carries out whatever it was given.
std::optional<Finding> found_by_crossing() {
  static auto& on = make_sim({.memory_bytes = std::size_t{1} << 20, .heedless = true});
  static auto& beside = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(on);
  auto buffer = scene.buffer(100);
  buffer.fill(1);
  buffer.sync_to_device();
  {
    auto part = buffer.slice(30, 20);
    auto const lease = part.device(on);
    std::fill_n(lease.data(), 20, 7U);
  }
  for (auto const at : {20, 50}) buffer.slice(at, 10).copy_from(std::vector<std::uint32_t>(10, 2));
  set_sim_faults(on, {.fail_download = 1});
  std::vector<Event> events;
  {
    GateFromBeside const gate(on, beside);
    auto part = buffer.slice(30, 20);
    events.push_back(part.sync_to_host_async());
    events.push_back(buffer.prefetch());
  }
  for (auto const event : events) static_cast<void>(event.wait_for_error());
  set_sim_faults(on, {});
  static_cast<void>(Scene::told_of_a_failure(buffer));
  try {
    if (buffer.slice(30, 20).to_vector() == std::vector<std::uint32_t>(20, 7)) return std::nullopt;
    return Finding{"the crossing test", "the only good copy was written over"};
  } catch (std::exception const& error) {
    return Finding{"the crossing test", error.what()};
  }
}

/// Two failures on bytes of their own: which of them an access to the second half is told, and to the first after it.
std::optional<Finding> found_by_telling() {
  static auto& on = make_sim({.memory_bytes = std::size_t{1} << 20});
  static auto& beside = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(on);
  auto buffer = scene.buffer(100);
  buffer.fill(1);
  auto first = buffer.slice(0, 50), second = buffer.slice(50);
  auto const fail = [&](BufferSlice<std::uint32_t> const& part, std::string const& words) {
    Operand const operand{&part.core(), part.range(), Intent::write};
    auto const program = on.compile(
        {"failing", "", [words](Range, std::size_t, std::size_t, auto const&) { throw std::runtime_error(words); }});
    return use_on_device(on.default_queue(), {&operand, 1}, [&](auto, std::span<const Event> needs) {
      return on.default_queue().run(program, Range{1}, {}, needs);
    });
  };
  std::vector<Event> events;
  {
    GateFromBeside const gate(on, beside);
    events = {fail(first, "first"), fail(second, "second")};
  }
  for (auto const event : events) static_cast<void>(event.wait_for_error());
  auto const told = [](auto const& part) -> std::string {
    try {
      static_cast<void>(part.host_view());
      return "nothing";
    } catch (std::exception const& error) {
      return error.what();
    }
  };
  auto const of_second = told(second), of_first = told(first), of_all = told(buffer);
  if (of_second.find("second") == std::string::npos) return Finding{"the telling", "of the second half: " + of_second};
  if (of_first.find("first") == std::string::npos) return Finding{"the telling", "of the first half: " + of_first};
  if (of_all != "nothing") return Finding{"the telling", "once more: " + of_all};
  return std::nullopt;
}

/// What threads that look without the lock are told after work of each kind.
std::optional<Finding> found_by_looking() {
  static auto& on = make_sim({.memory_bytes = std::size_t{1} << 20});
  static auto& beside = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(on);
  auto buffer = scene.buffer(100);
  auto const use = [&](Intent intent) {
    std::array const operands{Operand{&buffer.core(), {0, 400}, intent}};
    return use_on_device(on.default_queue(), operands,
                         [&](auto, std::span<const Event> needs) { return on.default_queue().join(needs); });
  };
  buffer.fill(1);
  buffer.sync_to_device();
  buffer.host()[0] = 2;
  use(Intent::read).wait();
  if (buffer.state() != BufferState::synchronized) return Finding{"the look", "what was brought is called old"};
  use(Intent::read_write).wait();
  buffer.sync_to_device();
  if (!buffer.core().device_ready(on)) return Finding{"the look", "what is current is not known to be"};
  GateFromBeside const gate(on, beside);
  static_cast<void>(use(Intent::read_write));
  if (buffer.core().device_ready(on)) return Finding{"the look", "what is being written is called current"};
  return std::nullopt;
}

/// Leases for one queue after the other, and what must not happen under them.
std::optional<Finding> found_by_leases() {
  static auto& on = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(on);
  auto buffer = scene.buffer(100);
  auto& queue = on.default_queue();
  for (std::uint32_t value = 1; value <= 3; ++value) {
    buffer.host()[0] = value;
    {
      auto const fresh = buffer.device_view(queue);
      queue.synchronize();
      if (fresh.data()[0] != value) return Finding{"the lease test", "a lease is of what was there before"};
    }
    static_cast<void>(buffer.device_view(queue));  // from here on without the lock
    auto const lease = buffer.device_view(queue);
    if (lease.data()[0] != value) return Finding{"the lease test", "a lease is of what was there before"};
    if (buffer.core().evict({&on, Location::device}, {}) != 0)
      return Finding{"the lease test", "memory went from under its lease"};
  }
  return std::nullopt;
}

/// A copy to the device that is made after a write on the host has been counted, and before it has been made.
std::optional<Finding> found_by_a_write_under_way() {
  static auto& on = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(on);
  HeldPage const source;
  auto buffer = scene.buffer(source.words().size());
  buffer.fill(1);
  std::atomic<bool> over{false};
  std::jthread other([&] {
    while (!HeldPage::has_reader() && !over) std::this_thread::yield();
    if (!over) buffer.sync_to_device();
    HeldPage::release();
  });
  try {
    buffer.copy_from(source.words());
  } catch (...) {
    over = true;
    throw;
  }
  other.join();
  return strange_word(buffer.device_view(on), [](std::size_t) { return 7U; });
}

/// A copy of what the host has, held up, and a mapping that writes over it.
std::optional<Finding> found_by_a_mapping() {
  static auto& on = make_sim({.memory_bytes = std::size_t{1} << 20});
  Scene scene(on);
  auto buffer = scene.buffer(100);
  buffer.fill(1);
  std::vector<std::uint32_t> copied(buffer.size());
  std::optional<Gate> gate{device("cpu").default_queue()};
  auto const copy = buffer.copy_to_async(copied);
  std::jthread const later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.reset();
  });
  std::ranges::fill(buffer.map(MapMode::read_write), 2U);
  copy.wait();
  if (copied == std::vector<std::uint32_t>(buffer.size(), 1)) return std::nullopt;
  return Finding{"the mapping test", "it wrote over what was being copied"};
}

/// What is noticed first while `mutant` is switched on.
std::optional<Finding> first_finding(Mutant mutant, unsigned seeds) {
  detail::active_mutant = mutant;
  std::optional<Finding> finding;
  try {
    Reuse reuse;
    if (auto const broken = reuse.run(8)) finding = {"the reuse test", *broken};
  } catch (std::exception const& violation) {
    finding = {"the reuse test", violation.what()};
  }
  if (!finding) finding = found_by_staging();
  if (!finding) finding = found_by_blocks_in_use();
  if (!finding) finding = found_by_arrival();
  if (!finding) finding = found_by_need();
  if (!finding) finding = found_by_crossing();
  if (!finding) finding = found_by_telling();
  if (!finding) finding = found_by_looking();
  if (!finding) finding = found_by_leases();
  if (!finding) finding = found_by_a_write_under_way();
  if (!finding) finding = found_by_a_mapping();
  if (auto const broken = finding ? std::nullopt : Evicting::run()) finding = {"the eviction test", *broken};
  if (auto const broken = finding ? std::nullopt : broken_by_spilling()) finding = {"the spilling test", *broken};
  if (auto const broken = finding ? std::nullopt : broken_in_files()) finding = {"the test of files", *broken};
  if (auto const broken = finding ? std::nullopt : broken_by_windows()) finding = {"the test of windows", *broken};
  if (auto const broken = finding ? std::nullopt : broken_by_scarce_room())
    finding = {"the test of scarce room", *broken};
  if (auto const broken = finding ? std::nullopt : broken_by_recycling(mutant == Mutant::recycled_work_forgotten))
    finding = {"the recycling test", *broken};
  for (auto seed = first_seed; seed < first_seed + seeds && !finding; ++seed) finding = found_by_model(seed);
  detail::active_mutant = Mutant::none;
  return finding;
}

class BufferMutants : public ::testing::TestWithParam<detail::MutantText> {};

TEST_P(BufferMutants, AreNoticed) {
  SCOPED_TRACE(::testing::Message() << "seed " << first_seed);
  auto const finding = first_finding(GetParam().mutant, 6);
  ASSERT_TRUE(finding.has_value()) << "a fault that " << GetParam().fault << " went unnoticed";
  std::cout << GetParam().name << ": " << finding->where << ": " << finding->what.substr(0, 160) << '\n';
  RecordProperty("found_by", finding->where);
}

INSTANTIATE_TEST_SUITE_P(Faults, BufferMutants, ::testing::ValuesIn(detail::all_mutants),
                         [](auto const& fault) { return std::string(fault.param.name); });

/// The two that the reuse test is there for.
TEST(ReuseMutants, ABlockReusedTooEarlyBreaksPatterns) {
  for (auto const mutant : {Mutant::ticket_dropped, Mutant::fresh_block_not_ordered}) {
    detail::active_mutant = mutant;
    EXPECT_NE(Reuse().run(8), std::nullopt);
    detail::active_mutant = Mutant::none;
  }
}

TEST(NoMutant, IsNotNoticed) {
  auto const finding = first_finding(Mutant::none, 1);
  EXPECT_FALSE(finding.has_value()) << finding->where << ": " << finding->what;
}

}  // namespace
}  // namespace unimem::testing
