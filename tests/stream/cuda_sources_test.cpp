#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/kernel/reduce.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "device/cuda/kernel_compiler.hpp"
#include "device/queue_backend.hpp"
#include "stream/chunk_work.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <type_traits>

// Every kernel of the library, compiled by NVRTC for every architecture from Turing on. Nothing of it runs here.

namespace unimem {
namespace {

using detail::cuda::KernelCache;
using detail::cuda::KernelCompiler;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

/// A device that compiles what it is given for all architectures, and can do nothing else.
class EveryArchitecture final : public Device {
 public:
  EveryArchitecture() : Device(Backend::cuda, "cuda:every") {
    info_.compiles_source = true;
    setenv("UNIMEM_NVRTC_LIBRARY", UNIMEM_NVRTC, 1);
    nvrtc_ = detail::cuda::load_nvrtc(driver_version);
    unsetenv("UNIMEM_NVRTC_LIBRARY");
    EXPECT_THAT(nvrtc_.problem, IsEmpty());
  }

  [[nodiscard]] MemoryInfo memory_info() const override { return {}; }
  [[nodiscard]] DeviceMemory allocate(std::size_t, Location) override {
    throw UnsupportedOperation("allocate", std::string(id()), "it only compiles");
  }
  void release(DeviceMemory, Location) noexcept override {}
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return false; }
  [[nodiscard]] void* address(DeviceMemory) override { return nullptr; }

  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& source) override {
    struct Nothing final : Program {};
    KernelCompiler const compiler{nvrtc_, driver_version, KernelCache{}};
    for (auto const architecture : nvrtc_.architectures) {
      if (architecture < 75) continue;
      SCOPED_TRACE(source.name + " for sm_" + std::to_string(architecture));
      EXPECT_THAT(compiler.compile(source, architecture, id()).image, StartsWith("\177ELF"));
      ++compiled[source.name];
    }
    return std::make_shared<Nothing const>();
  }

  [[nodiscard]] int architectures() const {
    return static_cast<int>(std::ranges::count_if(nvrtc_.architectures, [](int each) { return each >= 75; }));
  }

  std::map<std::string, int> compiled;  ///< kernels by name, and for how many architectures

 private:
  static constexpr int driver_version = 12040;

  [[nodiscard]] std::unique_ptr<detail::QueueBackend> make_queue() override { return nullptr; }

  detail::cuda::LoadedNvrtc nvrtc_;
};

constexpr ElementType all_elements[] = {ElementType::u8,  ElementType::i8,  ElementType::u16, ElementType::i16,
                                        ElementType::u32, ElementType::i32, ElementType::u64, ElementType::i64,
                                        ElementType::f32, ElementType::f64};

TEST(CudaSources, EveryKernelBuildsForAllArchitectures) {
  static EveryArchitecture device;
  ASSERT_GE(device.architectures(), 8);
  static_cast<void>(histogram().work()->start(device, ElementType::u8, false));
  for (auto const element : all_elements) {
    static_cast<void>(statistics(element).work()->start(device, element, false));
    for (bool const keep_input : {false, true}) {
      static_cast<void>(affine(element, 2.0, 1.0).work()->start(device, element, keep_input));
    }
  }
  EXPECT_EQ(device.compiled.size(), 1U + 3 * std::size(all_elements));
  EXPECT_THAT(device.compiled, Each(Pair(StartsWith("unimem_"), device.architectures())));
}

template <class T, class Operation>
void compile_reductions_by(Device& device, Operation operation) {
  auto const kernels = detail::reduction_kernels<detail::AsItIs, Operation, T>("x", operation);
  static_cast<void>(kernels.first.program(device));
  static_cast<void>(kernels.rest.program(device));
}

TEST(CudaSources, EveryReductionBuildsForAllArchitectures) {
  static EveryArchitecture device;
  auto const compile = [&]<class... T>(std::type_identity<T>... /*elements*/) {
    (compile_reductions_by<T>(device, Sum{}), ...);
    (compile_reductions_by<T>(device, Minimum{}), ...);
    (compile_reductions_by<T>(device, Maximum{}), ...);
  };
  compile(std::type_identity<std::uint8_t>{}, std::type_identity<std::int8_t>{}, std::type_identity<std::uint16_t>{},
          std::type_identity<std::int16_t>{}, std::type_identity<std::uint32_t>{}, std::type_identity<std::int32_t>{},
          std::type_identity<std::uint64_t>{}, std::type_identity<std::int64_t>{}, std::type_identity<float>{},
          std::type_identity<double>{});
  // What joins results is of the same source as what joins elements of their type.
  EXPECT_EQ(device.compiled, (std::map<std::string, int>{{"unimem_reduce", 3 * 10 * device.architectures()}}));
}

TEST(CudaSources, EveryFileWithKernelsIsCompiledHere) {
  std::set<std::string> files;
  for (auto const& entry : std::filesystem::recursive_directory_iterator(UNIMEM_SOURCE_FOLDER "/src")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    std::string const text{std::istreambuf_iterator<char>(in), {}};
    // A kernel's first word at the beginning of a line, as in a raw string: prose and the preludes have it elsewhere.
    if (text.find("\nUNIMEM_KERNEL ") != std::string::npos) files.insert(entry.path().filename());
  }
  EXPECT_EQ(files, (std::set<std::string>{"affine.cpp", "histogram.cpp", "reduction.cpp", "statistics.cpp"}))
      << "compile what is new in the tests above";
}

}  // namespace
}  // namespace unimem
