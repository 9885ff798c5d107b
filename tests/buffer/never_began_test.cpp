#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/gate_from_beside.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <tuple>

namespace unimem::testing {
namespace {

using ::testing::Each;

/// Work whose input failed does not begin, and has touched nothing then; that is believed of no more than is known.
class NeverBegan : public BufferTest {
 protected:
  Queue own_queue = sim.create_queue();

  /// What becomes of `changed`, which only the device has, when the work that was to change it does not get its input.
  static void feed_with_what_never_arrives(Device& device, UnifiedBuffer<std::uint32_t>& input,
                                           UnifiedBuffer<std::uint32_t>& changed) {
    input.copy_from(counting(100));
    {
      auto const lease = changed.device(device);
      std::fill_n(lease.data(), 100, 5U);
    }
    set_sim_faults(device, {.fail_upload = 1});
    auto& queue = device.default_queue();
    std::array const operands{Operand{&input.core(), {0, 400}, Intent::read},
                              Operand{&changed.core(), {0, 400}, Intent::read_write}};
    auto const event =
        use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
          return queue.copy(memory[1], memory[0], 400, needs);
        });
    EXPECT_THROW(event.wait(), DeviceError);
    EXPECT_THROW(std::ignore = changed.host_view(), DeviceError);
  }

  /// Sevens in the first half of a lease.
  static Event write_sevens(Queue& queue, DeviceMemory memory) {
    std::uint32_t const seven = 7;
    return queue.fill(memory.window(0, 200), std::as_bytes(std::span{&seven, 1}));
  }
};

TEST_F(NeverBegan, WorkThatNeverBeganChangedNothing) {
  UnifiedBuffer<std::uint32_t> input(100, on_sim()), changed(100, on_sim());
  feed_with_what_never_arrives(sim, input, changed);
  EXPECT_THAT(changed.to_vector(), Each(5U)) << "the only copy there was";
  changed.core().validate();
}

TEST_F(NeverBegan, AHeedlessDeviceLosesTheTargetLoudly) {
  auto& heedless = make_sim({.heedless = true});
  auto options = on_sim("precious");
  options.device = &heedless;
  UnifiedBuffer<std::uint32_t> input(100, options), changed(100, options);
  feed_with_what_never_arrives(heedless, input, changed);
  EXPECT_THROW(std::ignore = changed.to_vector(), DataLost) << "the copy went ahead";
  changed.core().validate();
}

TEST_F(NeverBegan, ALeaseWithFailedInputCountsAsWritten) {
  auto buffer = synchronized();
  set_sim_faults(other, {.fail_run = 1});
  {
    GateFromBeside gate(other, sim);
    Operand const operand{&buffer.core(), {200, 400}, Intent::write};
    run(other.default_queue(), {&operand, 1}, [](auto) {});
    auto const lease = buffer.device(own_queue);
    write_sevens(own_queue, lease.native());
  }
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100)) << "uploaded again";
}

TEST_F(NeverBegan, ALeaseWhoseInputIsLostOnItsWayIsToldThoughItsWorkEndedWell) {
  auto& heedless = make_sim({.heedless = true});
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  auto first = buffer.slice(0, 50), second = buffer.slice(50);
  {
    auto const lease = second.device(other);
    std::fill_n(lease.data(), 50, 5U);
  }
  auto queue = heedless.create_queue();
  Event written;
  {
    GateFromBeside gate(heedless, sim);
    queue.wait(heedless.default_queue().record());
    auto const lease = buffer.device(queue);
    written = write_sevens(queue, lease.native());
    set_sim_faults(other, {.lose_after = 1});
    auto const nothing = other.compile({"nothing", "", [](Range, std::size_t, std::size_t, auto const&) {}});
    EXPECT_THROW(other.default_queue().run(nothing, Range{1}, {}).wait(), DeviceError);
  }
  EXPECT_EQ(written.wait_for_error(), nullptr) << "a heedless device begins without its input";
  EXPECT_THROW(std::ignore = first.host_view(), DeviceError);
  EXPECT_EQ(first.to_vector(), counting(50)) << "as before: what was written came of half the input";
  set_sim_faults(other, {});
  EXPECT_THAT(second.to_vector(), Each(5U));
}

TEST_F(NeverBegan, TheLastStepSaysNothingAboutEarlierOnes) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim()), input(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  input.copy_from(counting(100));
  set_sim_faults(sim, {.fail_upload = 1});
  std::array const operands{Operand{&input.core(), {0, 400}, Intent::read},
                            Operand{&buffer.core(), {0, 400}, Intent::write}};
  auto const event =
      use_on_device(own_queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
        write_sevens(own_queue, memory[1]);
        return own_queue.copy(memory[1].window(200, 200), memory[0], 200, needs);
      });
  EXPECT_THROW(event.wait(), DeviceError);
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100)) << "uploaded again";
}

TEST_F(NeverBegan, AMarkSaysNothingAboutEarlierCommands) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim()), source(100, on_sim());
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  source.fill(1);
  set_sim_faults(other, {.fail_upload = 1});
  auto const memory = other.allocate(4, Location::device);
  auto const failed = other.default_queue().upload(memory, &buffer, 4);
  {
    auto const lease = buffer.device_view(own_queue);
    auto const from = source.device_view(own_queue);
    write_sevens(own_queue, lease.native());
    auto const last = own_queue.copy(lease.native().window(200, 200), from.native(), 200, {{failed}});
    EXPECT_NE(last.wait_for_error(), nullptr);
    EXPECT_TRUE(last.never_began());
    buffer.mark_device_dirty(sim, 0, 100, last);
  }
  EXPECT_THROW(std::ignore = buffer.host_view(), DeviceError);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(device_bytes(buffer, sim), counting(100)) << "uploaded again";
  other.release(memory, Location::device);
}

TEST_F(NeverBegan, ACopyWhoseSourceFailsLeavesItsTarget) {
  UnifiedBuffer<std::uint32_t> from(100, on_sim()), to(100, on_sim());
  from.copy_from(counting(100));
  from.sync_to_device();
  {
    auto const lease = to.device();
    std::fill_n(lease.data(), 100, 5U);
  }
  set_sim_faults(sim, {.fail_run = 1});
  GateFromBeside gate(sim, other);
  set(sim.default_queue(), from.slice(0), 9);
  auto const copied = copy_async(from, to);
  gate.open();
  EXPECT_THROW(copied.wait(), DeviceError);
  EXPECT_THROW(std::ignore = to.host_view(), DeviceError);
  EXPECT_THAT(to.to_vector(), Each(5U)) << "the only copy there was";
  EXPECT_THROW(std::ignore = from.host_view(), DeviceError);
  EXPECT_EQ(from.to_vector(), counting(100));
}

}  // namespace
}  // namespace unimem::testing
