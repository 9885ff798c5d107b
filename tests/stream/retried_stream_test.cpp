#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/stream/stream_file.hpp>

#include "file/failing_calls.hpp"
#include "stream/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <utility>
#include <vector>

// Reads that fail for a reason that may pass, and come short. Through a device that files are copied to: in mapped
// windows the system reads.

namespace unimem::testing {
namespace {

class RetriedStream : public ::testing::Test {
 protected:
  static constexpr std::size_t size = 5 * (64 << 10) + 77;

  void SetUp() override {
    options.device = &device("sim");
    options.chunk_bytes = 64 << 10;
    options.output = folder / "out";
    options.access = FileAccess::cached;
  }
  void TearDown() override { fail_reads(0, 0, 0); }

  [[nodiscard]] StreamResult run() const { return stream_file(path, affine(ElementType::u8, 1, 0), options); }
  void expect_whole_output() const { EXPECT_EQ(folder.read_elements<std::uint8_t>("out"), bytes); }

  ScratchFolder folder;
  std::vector<std::uint8_t> bytes = mixed_bytes(size, 1);
  std::filesystem::path path = folder.write("in", bytes);
  StreamOptions options;
};

TEST_F(RetriedStream, AReadThatFailsIsTriedAgainWhicheverItIs) {
  constexpr auto cached = FileAccess::cached, direct = FileAccess::direct;
  for (auto const& [access, error] : {std::pair{cached, EIO}, std::pair{cached, EAGAIN}, std::pair{cached, EINTR},
                                      std::pair{direct, EIO}, std::pair{direct, EAGAIN}, std::pair{direct, EINTR}}) {
    options.access = access;
    for (std::size_t n = 1;; ++n) {
      auto const before = refused(Call::read);
      fail_reads(n, 1, error);
      auto const result = run();
      auto const failed = refused(Call::read) - before;
      EXPECT_EQ(result.retries, failed);
      EXPECT_EQ(result.access, access);
      expect_whole_output();
      if (failed == 0) break;
      ASSERT_LT(n, 100U);
    }
  }
}

TEST_F(RetriedStream, TriesAsOftenAsItIsTold) {
  options.retries = 3;
  fail_reads(2, 3, EIO);
  EXPECT_EQ(run().retries, 3U);
  expect_whole_output();
  std::filesystem::remove(folder / "out");
  auto const before = refused(Call::read);
  fail_reads(2, 4, EIO);
  try {
    static_cast<void>(run());
    ADD_FAILURE() << "it went through";
  } catch (IoError const& error) {
    EXPECT_EQ(error.code, EIO);
    EXPECT_EQ(error.path, path.string());
  }
  EXPECT_EQ(refused(Call::read) - before, 4U);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"in"}));
}

TEST_F(RetriedStream, WithNoneTheFirstFailureEndsIt) {
  options.retries = 0;
  fail_reads(1, 1, EIO);
  EXPECT_THROW(static_cast<void>(run()), IoError);
}

TEST_F(RetriedStream, WhatDoesNotPassIsNotTriedAgain) {
  auto const before = refused(Call::read);
  fail_reads(1, 1, EBADF);
  EXPECT_THROW(static_cast<void>(run()), IoError);
  EXPECT_EQ(refused(Call::read) - before, 1U);
}

TEST_F(RetriedStream, ReadsThatComeShortGoOn) {
  fail_reads(0, 0, 0, 10'007);
  auto const result = run();
  EXPECT_EQ(result.retries, 5 * (65'536 / 10'007) + 0U);
  expect_whole_output();
}

}  // namespace
}  // namespace unimem::testing
