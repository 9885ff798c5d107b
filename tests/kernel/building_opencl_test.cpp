#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/opencl_faulty_api.hpp"
#include "device/opencl_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

// When the driver's compiler is called, counted at the driver.

namespace unimem {
namespace {

using ::testing::Each;

class BuildingUnderOpenCl : public OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped()) return;
    // A driver may have the library compile more with a device's first program.
    Kernel("first").source("UNIMEM_KERNEL first() {}").build(faulty_device());
    builds_before_ = driver().builds;
  }
  void TearDown() override {
    if (!IsSkipped()) driver().before_build = nullptr;
    OpenClTest::TearDown();
  }

  static FaultyOpenCl& driver() { return FaultyOpenCl::instance(); }
  [[nodiscard]] int builds() const { return driver().builds - builds_before_; }
  [[nodiscard]] BufferOptions at(Device& device) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &device;
    return options;
  }

  MemoryManager manager;
  Kernel add = Kernel("add").source(R"(
    UNIMEM_KERNEL add(UNIMEM_BUFFER(float, x), float a) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] += a; })");

 private:
  int builds_before_ = 0;
};

TEST_F(BuildingUnderOpenCl, ALaunchAfterABuildCallsNoCompiler) {
  UnifiedBuffer<float> x(1000, at(faulty_device()));
  x.fill(1.0F);
  add.build(faulty_device());
  EXPECT_EQ(builds(), 1);
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U) << "a build moves nothing";
  add.build(faulty_device());
  launch(add, Range{1000}, readwrite(x), 2.0F);
  launch(add, Range{777}, readwrite(x), 3.0F).wait();
  EXPECT_EQ(builds(), 1);
  EXPECT_THAT(std::vector(x.host_view().begin(), x.host_view().begin() + 777), Each(6.0F));
  EXPECT_THAT(std::vector(x.host_view().begin() + 777, x.host_view().end()), Each(3.0F));
}

TEST_F(BuildingUnderOpenCl, ABuildThatFailedIsTriedAgain) {
  auto const bad = Kernel("bad").source("UNIMEM_KERNEL bad() { undeclared_thing = 1; }");
  for (int attempt = 1; attempt < 3; ++attempt) {
    EXPECT_THROW(bad.build(faulty_device()), KernelError);
    EXPECT_EQ(builds(), attempt);
  }
}

TEST_F(BuildingUnderOpenCl, KernelsOfOneSourceAreCompiledTogether) {
  KernelSource source{.text = R"cl(
    UNIMEM_KERNEL set(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = VALUE; }
    UNIMEM_KERNEL twice(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= 2; })cl",
                      .defines = {{"VALUE", "3"}}};
  UnifiedBuffer<float> x(10, at(faulty_device()));
  {
    auto const set = Kernel("set").source(source), twice = Kernel("twice").source(source);
    launch(set, Range{10}, write(x));
    launch(twice, Range{10}, readwrite(x));
    EXPECT_THAT(x.to_vector(), Each(6.0F));
    EXPECT_THROW(Kernel("absent").source(source).build(faulty_device()), KernelError);
    EXPECT_EQ(builds(), 1);
    source.defines["VALUE"] = "4";
    launch(Kernel("set").source(source), Range{10}, write(x));
    EXPECT_THAT(x.to_vector(), Each(4.0F));
    EXPECT_EQ(builds(), 2);
  }
  source.defines["VALUE"] = "3";
  launch(Kernel("set").source(source), Range{10}, write(x)).wait();
  EXPECT_EQ(builds(), 3) << "what no kernel has is not kept";
}

TEST_F(BuildingUnderOpenCl, KernelsOfOneSourceAreBuiltAndRunByManyThreads) {
  constexpr std::size_t threads = 4;
  KernelSource source;
  for (std::size_t i = 0; i < threads; ++i) {
    source.text += "UNIMEM_KERNEL add_" + std::to_string(i) +
                   "(UNIMEM_BUFFER(int, x)) { UNIMEM_DATA(int, x)[UNIMEM_ITEM_X] += " + std::to_string(i + 1) + "; }\n";
  }
  std::vector<Kernel> kernels;
  for (std::size_t i = 0; i < threads; ++i) kernels.push_back(Kernel("add_" + std::to_string(i)).source(source));
  std::vector<std::future<void>> running;
  for (std::size_t i = 0; i < threads; ++i) {
    running.push_back(std::async(std::launch::async, [&, i] {
      auto queue = faulty_device().create_queue();
      UnifiedBuffer<int> x(1000, at(faulty_device()));
      x.fill(0);
      for (std::size_t run = 0; run < 100; ++run) launch(queue, kernels[i], Range{1000 - run % 3}, readwrite(x));
      EXPECT_EQ(x.host_view()[0], 100 * static_cast<int>(i + 1));
      EXPECT_EQ(x.host_view()[999], 34 * static_cast<int>(i + 1));
    }));
  }
  for (auto& one : running) one.get();
  EXPECT_EQ(builds(), 1);
}

TEST_F(BuildingUnderOpenCl, ASourceThatDoesNotBuildIsEachKernelsError) {
  std::string const source = "UNIMEM_KERNEL one() { undeclared_thing = 1; } UNIMEM_KERNEL two() {}";
  for (std::string const name : {"one", "two"}) {
    try {
      Kernel(name).source(source).build(faulty_device());
      FAIL() << "it was built";
    } catch (KernelError const& error) {
      EXPECT_EQ(error.name, name);
    }
  }
}

TEST_F(BuildingUnderOpenCl, ConcurrentBuildsCompileOnce) {
  constexpr int threads = 4;
  std::barrier all_here{threads + 1};
  std::promise<void> gate;
  driver().before_build = [open = gate.get_future().share()] { open.wait(); };
  UnifiedBuffer<float> x(1000, at(faulty_device()));
  x.fill(0.0F);
  std::vector<std::thread> building;
  for (int i = 0; i < threads; ++i) {
    building.emplace_back([&, i] {
      all_here.arrive_and_wait();
      if (i % 2 == 0) {
        add.build(faulty_device());
      } else {
        launch(add, Range{1000}, readwrite(x), 1.0F);
      }
    });
  }
  all_here.arrive_and_wait();
  EXPECT_FALSE(add.is_built(faulty_device()));
  gate.set_value();
  for (auto& one : building) one.join();
  EXPECT_TRUE(add.is_built(faulty_device()));
  EXPECT_EQ(builds(), 1);
  EXPECT_THAT(x.to_vector(), Each(2.0F));
}

TEST_F(BuildingUnderOpenCl, ABuildDoesNotBlockOtherDevices) {
  add.build(device());
  std::promise<void> begun, gate;
  driver().before_build = [&, open = gate.get_future().share()] {
    begun.set_value();
    open.wait();
  };
  auto elsewhere = std::async(std::launch::async, [&] { add.build(faulty_device()); });
  begun.get_future().wait();
  UnifiedBuffer<float> x(1000, at(device()));
  x.fill(1.0F);
  auto here = std::async(std::launch::async, [&] { launch(add, Range{1000}, readwrite(x), 2.0F).wait(); });
  EXPECT_EQ(here.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_TRUE(add.is_built(device())) << "whatever is being built";
  EXPECT_FALSE(add.is_built(faulty_device()));
  gate.set_value();
  here.get();
  elsewhere.get();
  EXPECT_THAT(x.to_vector(), Each(3.0F));
  EXPECT_EQ(builds(), 1);
}

}  // namespace
}  // namespace unimem
