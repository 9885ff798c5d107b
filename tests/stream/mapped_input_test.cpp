#include "stream/mapped_input.hpp"

#include <unimem/core/error.hpp>

#include "stream/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <thread>

namespace unimem::detail {
namespace {

Retries retries{0};

bool never() {
  return false;
}

TEST(MappedInput, EveryWindowShowsItsPartOfTheFile) {
  ScratchFolder const folder;
  auto const bytes = mixed_bytes(100'000, 1);
  InputFile const input(folder.write("in", bytes));
  MappedInput windows(input, 3, 10'000);
  for (std::size_t i = 0; i < 10; ++i) {
    auto const seen = windows.open(i % 3, i * 10'000, 10'000, retries, never);
    ASSERT_EQ(seen.size(), 10'000U);
    EXPECT_EQ(std::memcmp(seen.data(), bytes.data() + i * 10'000, 10'000), 0);
    windows.close(i % 3);
  }
  windows.check();
}

/// Sums what a window shows, so that every page of it is touched.
std::uint64_t sum(std::span<const std::byte> window) {
  return std::transform_reduce(window.begin(), window.end(), std::uint64_t{0}, std::plus{},
                               [](std::byte byte) { return std::to_integer<std::uint64_t>(byte); });
}

TEST(MappedInput, ShrinkingUnderAWindowIsReported) {
  ScratchFolder const folder;
  auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  // Zeros are behind what is left, to the end of the page; where larger pages are only played (device/large_pages.cpp),
  // the system's own end earlier, and so do signals.
  auto const left = page == static_cast<std::size_t>(::getpagesize()) ? std::size_t{100'000} : 2 * page;
  auto const missing = 1'000'000 - (left + page - 1) / page * page;
  std::vector<std::uint8_t> const ones(1'000'000, 1);
  InputFile const input(folder.write("in", ones));
  MappedInput windows(input, 2, 1'000'000);
  auto const seen = windows.open(1, 0, 1'000'000, retries, never);
  std::filesystem::resize_file(folder / "in", left);
  {
    // From several threads at once, as kernels do.
    std::vector<std::jthread> readers;
    for (int i = 0; i < 4; ++i) readers.emplace_back([&] { EXPECT_EQ(sum(seen), left + missing * 0xCD); });
  }
  try {
    windows.check();
    ADD_FAILURE() << "not noticed";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("shrank while it was read: " + std::to_string(left) +
                                                   " bytes of 1000000 are left"));
  }
}

TEST(MappedInput, AFileThatShrankEarlierIsReported) {
  ScratchFolder const folder;
  InputFile const input(folder.write("in", std::vector<std::uint8_t>(1'000'000, 1)));
  MappedInput windows(input, 1, 500'000);
  std::filesystem::resize_file(folder / "in", 500'000);
  // A kernel that brings pages in beforehand says so at once; an older one only when they are touched.
  EXPECT_THROW(
      {
        static_cast<void>(sum(windows.open(0, 500'000, 500'000, retries, never)));
        windows.check();
      },
      IoError);
}

TEST(MappedInput, AFileThatHasItsSizeAgainIsReported) {
  ScratchFolder const folder;
  InputFile const input(folder.write("in", std::vector<std::uint8_t>(1'000'000, 1)));
  MappedInput windows(input, 1, 1'000'000);
  auto const seen = windows.open(0, 0, 1'000'000, retries, never);
  std::filesystem::resize_file(folder / "in", 0);
  EXPECT_EQ(seen[500'000], std::byte{0xCD});
  std::filesystem::resize_file(folder / "in", 1'000'000);
  input.check_size();
  EXPECT_THROW(windows.check(), IoError) << "a kernel has seen what was not there";
}

TEST(MappedInput, ShrinkingWithinThePageIsNoticedToo) {
  ScratchFolder const folder;
  InputFile const input(folder.write("in", std::vector<std::uint8_t>(1'000, 1)));
  MappedInput windows(input, 1, 1'000);
  auto const seen = windows.open(0, 0, 1'000, retries, never);
  std::filesystem::resize_file(folder / "in", 999);
  EXPECT_EQ(sum(seen), 999U);
  EXPECT_THROW(windows.check(), IoError);
}

TEST(MappedInput, AGrowingFileKeepsItsSize) {
  ScratchFolder const folder;
  InputFile const input(folder.write("in", std::vector<std::uint8_t>(1'000, 1)));
  std::filesystem::resize_file(folder / "in", 5'000);
  EXPECT_EQ(input.bytes(), 1'000U);
  input.check_size();
}

}  // namespace
}  // namespace unimem::detail
