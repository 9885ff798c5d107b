#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "device/conformance_fixture.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>

namespace unimem {
namespace {

using namespace std::chrono_literals;

std::string code_of(Event event) {
  try {
    event.wait();
  } catch (DeviceError const& error) {
    return error.backend + " " + error.call + " " + error.code_name;
  }
  return "done";
}

TEST(SimFaults, TheNthAllocationFails) {
  auto& sim = make_sim({.memory_bytes = 10'000, .fail_allocation = 3});
  Allocated const first{sim, 100}, second{sim, 100};
  try {
    static_cast<void>(sim.allocate(50, Location::device));
    FAIL() << "the plan was not followed";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.requested(), 50U);
    EXPECT_EQ(error.live(), 200U);
    EXPECT_EQ(error.facts().device_free, 9800U);
    EXPECT_EQ(error.facts().where, std::string(sim.id()) + " device");
    EXPECT_THAT(error.facts().reason, ::testing::HasSubstr("fault plan"));
  }
  Allocated const fourth{sim, 50};
  EXPECT_EQ(sim.memory_info().free_bytes, 9750U);
}

TEST(SimFaults, PagesAreAllocationsToo) {
  auto& sim = make_sim({.fail_allocation = 1});
  EXPECT_THROW(static_cast<void>(sim.pages()->create_pages(sim.pages()->page_bytes())), OutOfMemory);
  EXPECT_EQ(sim.memory_info().free_bytes, sim.info().total_bytes);
}

TEST(SimFaults, TheNthUploadFails) {
  auto& sim = make_sim({.fail_upload = 2});
  Allocated const piece{sim, 100};
  auto const ones = repeated(100, 1), twos = repeated(100, 2);
  auto queue = sim.create_queue();
  EXPECT_EQ(code_of(queue.upload(piece.memory(), ones.data(), 100)), "done");
  EXPECT_EQ(code_of(queue.upload(piece.memory(), twos.data(), 100)), "sim upload SIM_FAULT");
  EXPECT_EQ(downloaded(sim, piece.memory()), ones);
  EXPECT_EQ(sim.transfers().host_to_device_bytes, 100U);
  EXPECT_EQ(code_of(queue.upload(piece.memory(), twos.data(), 100)), "done");
  EXPECT_EQ(downloaded(sim, piece.memory()), twos);
}

TEST(SimFaults, TheNthDownloadFails) {
  auto& sim = make_sim({.fail_download = 1});
  Allocated const piece{sim, 100};
  auto queue = sim.create_queue();
  queue.fill(piece.memory(), repeated(1, 5));
  auto landed = repeated(100, 0xAA);
  EXPECT_EQ(code_of(queue.download(landed.data(), piece.memory(), 100)), "sim download SIM_FAULT");
  EXPECT_EQ(landed, repeated(100, 0xAA));
  EXPECT_EQ(sim.transfers(), TransferCounters{}) << "what failed took no time that counts";
  EXPECT_EQ(downloaded(sim, piece.memory()), repeated(100, 5));
}

TEST(SimFaults, AFailedRunRuinsItsOutputs) {
  auto& sim = make_sim({.fail_run = 2});
  Allocated const written{sim, 1000}, only_read{sim, 1000};
  auto queue = sim.create_queue();
  queue.fill(written.memory(), repeated(1, 0));
  queue.fill(only_read.memory(), repeated(1, 0));
  auto const program =
      sim.compile({"nothing", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument>) {}});
  std::array const arguments{memory_argument(written.window(100, 200)), memory_argument(only_read.memory(), false)};
  EXPECT_EQ(code_of(queue.run(program, Range{1}, arguments)), "done");
  EXPECT_EQ(code_of(queue.run(program, Range{1}, arguments)), "sim run SIM_FAULT");
  auto expected = repeated(1000, 0);
  std::fill_n(expected.begin() + 100, 200, std::byte{0xDB});
  EXPECT_EQ(downloaded(sim, written.memory()), expected);
  EXPECT_EQ(downloaded(sim, only_read.memory()), repeated(1000, 0));
}

TEST(SimFaults, WhatNeedsWorkThatFailsLaterNeverBegins) {
  auto& sim = make_sim({.fail_upload = 1});
  auto& beside = make_sim({});
  Allocated const piece{sim, 100}, target{sim, 100};
  auto const ones = repeated(100, 1);
  auto queue = sim.create_queue(), other = sim.create_queue(), held = beside.create_queue();
  queue.fill(target.memory(), repeated(1, 7));
  std::optional<Gate> gate{held};
  queue.wait(held.record());
  auto const failed = queue.upload(piece.memory(), ones.data(), 100);
  auto const behind = queue.copy(target.memory(), piece.memory(), 100, {{failed}});
  auto const elsewhere = other.copy(target.memory(), piece.memory(), 100, {{behind}});
  EXPECT_FALSE(behind.never_began()) << "not known yet";
  gate.reset();
  EXPECT_EQ(code_of(elsewhere), "sim upload SIM_FAULT");
  EXPECT_TRUE(behind.never_began() && elsewhere.never_began());
  EXPECT_FALSE(failed.never_began()) << "it failed by itself";
  EXPECT_EQ(downloaded(sim, target.memory()), repeated(100, 7));
}

TEST(SimFaults, OnlyWorkThatBeginsCounts) {
  auto& sim = make_sim({.fail_upload = 1, .fail_download = 2, .fail_run = 1});
  Allocated const piece{sim, 100};
  auto const ones = repeated(100, 1);
  Bytes landed(100);
  auto queue = sim.create_queue();
  auto const nothing =
      sim.compile({"nothing", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument>) {}});
  auto const failed = queue.upload(piece.memory(), ones.data(), 100);
  auto const skipped_run = queue.run(nothing, Range{1}, {}, {{failed}});
  auto const skipped_download = queue.download(landed.data(), piece.memory(), 100, {{skipped_run}});
  EXPECT_EQ(code_of(skipped_download), "sim upload SIM_FAULT");
  EXPECT_TRUE(skipped_run.never_began() && skipped_download.never_began());
  EXPECT_EQ(code_of(queue.run(nothing, Range{1}, {})), "sim run SIM_FAULT") << "the first that began";
  EXPECT_EQ(code_of(queue.run(nothing, Range{1}, {})), "done");
  queue.fill(piece.memory(), repeated(1, 5));
  EXPECT_EQ(code_of(queue.download(landed.data(), piece.memory(), 100)), "done");
  EXPECT_EQ(code_of(queue.download(landed.data(), piece.memory(), 100)), "sim download SIM_FAULT") << "the second";
  EXPECT_EQ(landed, repeated(100, 5));
}

TEST(SimFaults, OnlyCallsThatBeginCount) {
  auto& sim = make_sim();
  auto& beside = make_sim();
  Allocated const piece{sim, 100};
  auto const ones = repeated(100, 1);
  auto queue = sim.create_queue(), held = beside.create_queue();
  set_sim_faults(sim, {.fail_upload = 1, .fail_call = 3});
  std::optional<Gate> gate{held};
  queue.wait(held.record());
  auto const failed = queue.upload(piece.memory(), ones.data(), 100);                          // the first
  auto const skipped = queue.copy(piece.window(0, 10), piece.window(50, 10), 10, {{failed}});  // not a call
  auto const second = queue.fill(piece.memory(), repeated(1, 2)), third = queue.fill(piece.memory(), repeated(1, 3));
  gate.reset();
  EXPECT_EQ(code_of(skipped), "sim upload SIM_FAULT");
  EXPECT_EQ(code_of(second), "done") << "also when it was submitted before anybody knew";
  EXPECT_EQ(code_of(third), "sim fill SIM_FAULT");
  EXPECT_EQ(downloaded(sim, piece.memory()), repeated(100, 2));
}

TEST(SimFaults, AFaultIsForWorkThatBegins) {
  auto& sim = make_sim();
  auto& beside = make_sim({.fail_upload = 1});
  Allocated const piece{sim, 100}, elsewhere{beside, 100};
  auto const ones = repeated(100, 1);
  auto early = sim.create_queue(), late = sim.create_queue(), held = beside.create_queue();
  std::optional<Gate> gate{held};
  auto const failed = held.upload(elsewhere.memory(), ones.data(), 100);
  set_sim_faults(sim, {.fail_upload = 1});
  auto const skipped = late.upload(piece.memory(), ones.data(), 100, {{failed}});
  EXPECT_EQ(code_of(early.upload(piece.memory(), ones.data(), 100)), "done")
      << "by the order of calls it is the second";
  gate.reset();
  EXPECT_NE(skipped.wait_for_error(), nullptr);
  EXPECT_TRUE(skipped.never_began());
  EXPECT_EQ(code_of(early.upload(piece.memory(), ones.data(), 100)), "sim upload SIM_FAULT");
  EXPECT_EQ(code_of(early.upload(piece.memory(), ones.data(), 100)), "done") << "and once";
}

TEST(SimFaults, AHeedlessDeviceRunsEverything) {
  auto& sim = make_sim({.heedless = true, .fail_upload = 1});
  auto& beside = make_sim({});
  Allocated const piece{sim, 100}, target{sim, 100};
  auto const ones = repeated(100, 1);
  auto queue = sim.create_queue(), held = beside.create_queue();
  queue.fill(target.memory(), repeated(1, 7));
  std::optional<Gate> gate{held};
  queue.wait(held.record());
  auto const failed = queue.upload(piece.memory(), ones.data(), 100);
  auto const behind = queue.copy(target.memory(), piece.memory(), 100, {{failed}});
  gate.reset();
  EXPECT_EQ(code_of(behind), "sim upload SIM_FAULT") << "its error is inherited all the same";
  EXPECT_FALSE(behind.never_began());
  EXPECT_EQ(downloaded(sim, target.memory()), repeated(100, 0xCD)) << "what never arrived was copied";
}

TEST(SimFaults, ALostDeviceFailsEveryCommand) {
  auto& sim = make_sim({.lose_after = 3});
  Allocated const piece{sim, 100};
  auto const ones = repeated(100, 1);
  Bytes landed = repeated(100, 9);
  auto queue = sim.create_queue();
  auto const program = sim.compile(add_kernel());
  std::array const arguments{memory_argument(piece.memory()), scalar_argument(std::uint32_t{1})};
  EXPECT_EQ(code_of(queue.upload(piece.memory(), ones.data(), 100)), "done");
  EXPECT_EQ(code_of(queue.fill(piece.memory(), repeated(1, 2))), "done");
  EXPECT_EQ(code_of(queue.download(landed.data(), piece.memory(), 100)), "sim download DEVICE_LOST");
  EXPECT_EQ(code_of(queue.upload(piece.memory(), ones.data(), 100)), "sim upload DEVICE_LOST");
  EXPECT_EQ(code_of(queue.fill(piece.memory(), repeated(1, 3))), "sim fill DEVICE_LOST");
  EXPECT_EQ(code_of(queue.copy(piece.window(0, 10), piece.window(50, 10), 10)), "sim copy DEVICE_LOST");
  EXPECT_EQ(code_of(queue.run(program, Range{25}, arguments)), "sim run DEVICE_LOST");
  EXPECT_EQ(code_of(sim.create_queue().fill(piece.memory(), repeated(1, 3))), "sim fill DEVICE_LOST");
  EXPECT_THROW(static_cast<void>(sim.allocate(1, Location::device)), DeviceError);
  EXPECT_EQ(landed, repeated(100, 9));

  set_sim_faults(sim, {});  // found again, as it was
  EXPECT_EQ(downloaded(sim, piece.memory()), repeated(100, 2));
}

TEST(SimFaults, WorkSubmittedBeforeTheLossStillEnds) {
  auto& sim = make_sim({.latency = 5ms, .lose_after = 2});
  Allocated const piece{sim, 100};
  auto queue = sim.create_queue();
  auto const before = queue.fill(piece.memory(), repeated(1, 2));
  auto const lost = queue.fill(piece.memory(), repeated(1, 3));
  EXPECT_EQ(code_of(lost), "sim fill DEVICE_LOST");
  EXPECT_EQ(code_of(before), "done");
}

TEST(SimFaults, ANewPlanCountsFromOneAgain) {
  auto& sim = make_sim();
  Allocated const piece{sim, 16};
  std::array<std::byte, 16> host{};
  auto queue = sim.create_queue();
  for (int i = 0; i < 5; ++i) queue.upload(piece.memory(), host.data(), 16);
  set_sim_faults(sim, {.fail_upload = 2});
  EXPECT_EQ(code_of(queue.upload(piece.memory(), host.data(), 16)), "done");
  EXPECT_EQ(code_of(queue.upload(piece.memory(), host.data(), 16)), "sim upload SIM_FAULT");
  EXPECT_EQ(code_of(queue.upload(piece.memory(), host.data(), 16)), "done");
  EXPECT_THROW(set_sim_faults(device("cpu"), {}), InvalidArgument);
}

}  // namespace
}  // namespace unimem
