#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/stream/stream_file.hpp>

#include "stream/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>

namespace unimem {
namespace {

using ::testing::HasSubstr;

class BadInput : public ::testing::Test {
 protected:
  void SetUp() override { options.device = &device("cpu"); }

  /// Runs a stream that must fail as E, leaving the folder as it is; gives the error.
  template <class E>
  E failure(std::filesystem::path const& path, StreamKernel const& kernel) {
    auto const before = folder.names();
    try {
      stream_file(path, kernel, options);
    } catch (E const& error) {
      EXPECT_EQ(folder.names(), before);
      return error;
    }
    throw std::logic_error("it went through");
  }

  std::filesystem::path input(std::size_t bytes = 1'000) {
    return folder.write("input", std::vector<std::uint8_t>(bytes, 7));
  }

  ScratchFolder folder;
  StreamOptions options;
};

TEST_F(BadInput, FilesThatCannotBeRead) {
  EXPECT_EQ(failure<IoError>(folder / "missing", histogram()).code, ENOENT);
  EXPECT_EQ(failure<IoError>(folder / "", histogram()).code, EISDIR);
  EXPECT_EQ(failure<IoError>(input() / "below", histogram()).code, ENOTDIR);
  auto const endless = failure<IoError>("/dev/zero", histogram());
  EXPECT_EQ(endless.code, 0);
  EXPECT_THAT(endless.what(), HasSubstr("cat > FILE"));
}

TEST_F(BadInput, AMappingKernelOfAnotherElementOfTheSize) {
  auto const path = folder.write("input", std::vector<float>(250, 1));
  auto const kernel =
      mapping(Kernel("halved").host([](WorkItem item, std::span<const std::uint32_t> in, std::span<std::uint32_t> out,
                                       std::uint64_t) { out[item.x] = in[item.x] / 2; }));
  for (auto const* const id : {"cpu", "sim"}) {
    options.device = &device(id);
    options.output = folder / "output";
    for (auto const other : {ElementType::f32, ElementType::i32, ElementType::u16, ElementType::u64}) {
      options.element = other;
      EXPECT_THAT(failure<KernelError>(path, kernel).what(), HasSubstr("halved")) << id << ' ' << to_string(other);
    }
    options.element = ElementType::u32;
    stream_file(path, kernel, options);
    EXPECT_EQ(folder.read_elements<std::uint32_t>("output"), std::vector<std::uint32_t>(250, 0x3F80'0000U / 2));
    std::filesystem::remove(folder / "output");
  }
}

TEST_F(BadInput, SizesThatDoNotFitTheElement) {
  auto const error = failure<IoError>(input(1'001), statistics(ElementType::f64));
  EXPECT_EQ(error.code, 0);
  EXPECT_THAT(error.what(), HasSubstr("its 1001 bytes are no multiple of the 8 of an f64"));
  options.element = ElementType::u16;
  EXPECT_THAT(failure<IoError>(folder / "input", histogram()).what(), HasSubstr("no multiple of the 2 of an u16"));
  options.chunk_bytes = 1'001;
  auto const chunk = failure<InvalidArgument>(input(1'000), statistics());
  EXPECT_EQ(chunk.argument, "chunk_bytes");
  EXPECT_EQ(chunk.value, "1001");
}

TEST_F(BadInput, OptionsThatMakeNoSense) {
  options.buffers = 0;
  EXPECT_EQ(failure<InvalidArgument>(input(), histogram()).argument, "buffers");
  options.buffers = 1;
  options.chunk_bytes = 0;
  EXPECT_EQ(failure<InvalidArgument>(input(), histogram()).argument, "chunk_bytes");
  options.chunk_bytes = 64;
  options.output = folder / "output";
  EXPECT_EQ(failure<InvalidArgument>(input(), histogram()).argument, "output");
  options.output.clear();
  options.element = ElementType::u8;
  EXPECT_EQ(failure<InvalidArgument>(input(), statistics(ElementType::i8)).argument, "element");
}

TEST_F(BadInput, KernelsThatMakeNoSense) {
  EXPECT_THROW(static_cast<void>(affine({}, std::nan(""), 0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(affine({}, 1, HUGE_VAL)), InvalidArgument);
  EXPECT_THROW(StreamKernel(Kernel("formless")), InvalidArgument);
  auto kernel = histogram();
  auto const taken = std::move(kernel);
  EXPECT_EQ(failure<InvalidArgument>(input(), kernel).argument, "kernel") << "it was moved from";
  EXPECT_EQ(kernel.name(), "");
  EXPECT_FALSE(kernel.maps());
  EXPECT_EQ(taken.name(), "histogram");
}

TEST_F(BadInput, NpyFilesThatAreNotWhatTheySay) {
  auto const npy = [&](std::string_view dictionary, std::size_t bytes) {
    std::string contents("\x93NUMPY\x01\0", 8);
    contents += static_cast<char>(dictionary.size());
    contents += '\0';
    contents += dictionary;
    return folder.write("input.npy", contents + std::string(bytes, 'x'));
  };
  auto const good = "{'descr': '<f4', 'fortran_order': False, 'shape': (25,), }\n";
  EXPECT_THAT(failure<IoError>(npy(good, 99), statistics()).what(),
              HasSubstr("announces 100 bytes of data, and 99 follow"));
  EXPECT_THAT(failure<IoError>(npy(good, 101), statistics()).what(), HasSubstr("and 101 follow"));
  EXPECT_THAT(
      failure<IoError>(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (25,), }", 100), statistics()).what(),
      HasSubstr("Fortran order"));
  EXPECT_THAT(
      failure<IoError>(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (25,), }", 100), statistics()).what(),
      HasSubstr("big-endian"));
  EXPECT_THAT(failure<IoError>(npy(good, 100), statistics(ElementType::i32)).what(),
              HasSubstr("it holds f32, not i32"));
  EXPECT_THAT(failure<IoError>(folder.write("empty.npy", std::string_view()), statistics()).what(),
              HasSubstr("does not begin"));
}

TEST_F(BadInput, OutputsThatCannotBeWritten) {
  auto const path = input(100'000);
  auto const map = affine(ElementType::u8, 1, 1);
  options.output = folder / "missing/output";
  EXPECT_EQ(failure<IoError>(path, map).code, ENOENT);
  options.output = folder / "";
  EXPECT_EQ(failure<IoError>(path, map).code, EISDIR);
  options.output = path;
  EXPECT_EQ(failure<InvalidArgument>(path, map).argument, "output");
  options.output = "/dev/full";
  options.chunk_bytes = 1'000;
  EXPECT_EQ(failure<IoError>(path, map).code, ENOSPC);
}

TEST_F(BadInput, AFileThatShrinksIsAnError) {
  for (auto* const on : {&device("cpu"), &make_sim()}) {
    options.device = on;
    options.output = folder / "output";
    options.chunk_bytes = 64 * 1'024;
    for (std::uint64_t const left : {0U, 1'000U, 700'000U, 999'999U}) {
      auto const path = input(1'000'000);
      options.progress = [&](std::uint64_t done, std::uint64_t) {
        if (done == 0) std::filesystem::resize_file(path, left);
      };
      EXPECT_THAT(failure<IoError>(path, affine(ElementType::u8, 1, 1)).what(), HasSubstr("shrank while it was read"))
          << on->id() << ", " << left << " bytes left";
    }
  }
}

TEST_F(BadInput, AFileThatGrowsKeepsItsFirstSize) {
  for (auto* const on : {&device("cpu"), &make_sim()}) {
    options.device = on;
    options.chunk_bytes = 64 * 1'024;
    auto const path = input(1'000'000);
    options.progress = [&](std::uint64_t done, std::uint64_t) {
      if (done == 0) std::filesystem::resize_file(path, 2'000'000);
    };
    auto const result = stream_file(path, histogram(), options);
    EXPECT_EQ(result.bytes, 1'000'000U);
    EXPECT_EQ(std::get<HistogramResult>(result.result).counts[7], 1'000'000U);
  }
}

}  // namespace
}  // namespace unimem
