#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "core/sizes.hpp"
#include "device/cuda_fixture.hpp"

#include <algorithm>
#include <string>
#include <vector>

// Which GPUs of a machine are devices, and how much of their memory there is for us. What the environment says counts
// once in each process, so every case is one.

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void set(char const* name, char const* value) {
  setenv(name, value, 1);
}

/// The hardware's names of all CUDA devices, in order.
std::vector<std::string> gpus() {
  std::vector<std::string> names;
  for (Device const& each : devices()) {
    if (each.backend() == Backend::cuda) names.push_back(each.info().name);
  }
  return names;
}

std::string why_there_is_none() {
  for (auto const& [backend, reason] : unavailable_backends()) {
    if (backend == Backend::cuda) return reason;
  }
  return {};
}

TEST(VisibleGpus, AreThoseOfTheEnvironmentInItsOrder) {
  set("UNIMEM_CUDA_STANDIN_DEVICES", "4");
  set("CUDA_VISIBLE_DEVICES", "2,0");
  EXPECT_THAT(gpus(), ElementsAre("Stand-in GPU 2", "Stand-in GPU 0"));
  EXPECT_EQ(device("cuda:1").info().name, "Stand-in GPU 0");
  EXPECT_THROW(static_cast<void>(device("cuda:2")), NotFound);
  EXPECT_THROW(static_cast<void>(device("cuda:2,profile=1")), NotFound);
}

TEST(VisibleGpus, MayBeNone) {
  set("CUDA_VISIBLE_DEVICES", "");
  EXPECT_THAT(gpus(), IsEmpty());
  EXPECT_THAT(why_there_is_none(), HasSubstr("CUDA_ERROR_NO_DEVICE"));
  EXPECT_THROW(static_cast<void>(device("cuda:0")), NotFound);
}

TEST(VisibleGpus, OfAPartitionedGpuAreTheNamedInstance) {
  set("UNIMEM_CUDA_STANDIN_INSTANCES", "4");
  set("UNIMEM_CUDA_STANDIN_CAPACITY", "268435456");
  set("CUDA_VISIBLE_DEVICES", "MIG-12");
  EXPECT_THAT(gpus(), ElementsAre("Stand-in GPU MIG 2"));
  auto& instance = device("cuda:0");
  EXPECT_EQ(instance.info().total_bytes, 64 * MiB) << "its share of the memory";
  EXPECT_EQ(instance.memory_info().total_bytes, 64 * MiB);
  auto const block = instance.allocate(48 * MiB, Location::device);
  EXPECT_EQ(instance.memory_info().free_bytes, 16 * MiB);
  EXPECT_THROW(static_cast<void>(instance.allocate(17 * MiB, Location::device)), OutOfMemory);
  instance.release(block, Location::device);
  EXPECT_EQ(instance.memory_info().free_bytes, 64 * MiB);
}

TEST(VisibleGpus, OfAPartitionedGpuAreTheFirstInstance) {
  set("UNIMEM_CUDA_STANDIN_INSTANCES", "4");
  EXPECT_THAT(gpus(), ElementsAre("Stand-in GPU MIG 0"));
}

TEST(MemoryOfGpus, WhatOtherProcessesHoldIsNotFree) {
  set("UNIMEM_CUDA_STANDIN_CAPACITY", "268435456");
  auto& gpu = device("cuda:0");
  auto const total = 256 * MiB;
  EXPECT_EQ(gpu.memory_info().free_bytes, total);
  standin_control().set_used_by_others(0, 100 * MiB);
  EXPECT_EQ(gpu.memory_info().free_bytes, total - 100 * MiB);
  EXPECT_EQ(gpu.memory_info().total_bytes, total) << "the limit is what it was";
  auto const block = gpu.allocate(50 * MiB, Location::device);
  EXPECT_EQ(gpu.memory_info().free_bytes, total - 150 * MiB);
  standin_control().set_used_by_others(0, 0);
  EXPECT_EQ(gpu.memory_info().free_bytes, total - 50 * MiB);
  gpu.release(block, Location::device);
  EXPECT_EQ(gpu.memory_info().free_bytes, total);
}

TEST(MemoryOfGpus, OfALimitedDeviceIsTheSmaller) {
  set("UNIMEM_CUDA_STANDIN_CAPACITY", "268435456");
  auto& gpu = device("cuda:0,memory=64MiB");
  EXPECT_EQ(gpu.memory_info().free_bytes, 64 * MiB);
  standin_control().set_used_by_others(0, 100 * MiB);
  EXPECT_EQ(gpu.memory_info().free_bytes, 64 * MiB) << "there is more than that left";
  standin_control().set_used_by_others(0, 236 * MiB);
  EXPECT_EQ(gpu.memory_info().free_bytes, 20 * MiB);
  EXPECT_EQ(gpu.memory_info().total_bytes, 64 * MiB);
}

}  // namespace
}  // namespace unimem
