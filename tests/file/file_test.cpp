#include "file/file.hpp"

#include <unimem/core/error.hpp>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace unimem::detail {
namespace {

using ::testing::HasSubstr;

constexpr auto doing = "testing it";

std::vector<std::byte> bytes_of(std::string const& text) {
  auto const bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

std::string text_of(File const& file, std::uint64_t offset, std::size_t count) {
  std::string text(count, '?');
  text.resize(file.read(offset, std::as_writable_bytes(std::span{text}), doing));
  return text;
}

/// The error's code; its message names `name`, and what was being done.
int code_of(std::function<void()> const& call, std::string const& name) {
  try {
    call();
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, name);
    EXPECT_THAT(error.what(), HasSubstr(doing));
    return error.code;
  }
  return 0;
}

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    auto made = File::unnamed(folder, O_RDWR, 0600, folder, doing);
    if (!made) throw IoError(folder, EOPNOTSUPP, doing);
    file = *std::move(made);
  }

  std::string const folder = ::testing::TempDir();
  File file;
};

TEST_F(FileTest, ReadsWhatWasWrittenByOffset) {
  file.write(0, bytes_of("abcdef"), doing);
  file.write(2, bytes_of("XY"), doing);
  EXPECT_EQ(text_of(file, 0, 6), "abXYef");
  EXPECT_EQ(text_of(file, 3, 2), "Ye");
  file.sync(doing);
  EXPECT_EQ(file.status(doing).st_size, 6);
}

TEST_F(FileTest, AGapReadsAsZeros) {
  file.write(3, bytes_of("d"), doing);
  EXPECT_EQ(text_of(file, 0, 4), std::string("\0\0\0d", 4));
}

TEST_F(FileTest, OnlyTheEndGivesFewerBytes) {
  file.write(0, bytes_of("abc"), doing);
  EXPECT_EQ(text_of(file, 1, 100), "bc");
  EXPECT_EQ(text_of(file, 3, 1), "");
  EXPECT_EQ(text_of(file, 1000, 1), "");
}

TEST_F(FileTest, AnUnnamedFileIsInNoFolder) {
  auto const own = folder + "/unimem-file-test";
  std::filesystem::create_directory(own);
  auto const unnamed = File::unnamed(own, O_RDWR, 0600, "mine", doing);
  ASSERT_TRUE(unnamed);
  unnamed->write(0, bytes_of("abc"), doing);
  EXPECT_TRUE(std::filesystem::is_empty(own));
  EXPECT_EQ(unnamed->status(doing).st_nlink, 0U);
  EXPECT_EQ(unnamed->status(doing).st_mode & 0777U, 0600U);
  EXPECT_EQ(unnamed->name(), "mine");
  EXPECT_NE(::fcntl(unnamed->descriptor(), F_GETFD) & FD_CLOEXEC, 0) << "a program that is started does not inherit it";
  std::filesystem::remove(own);
}

TEST_F(FileTest, AFileSystemWithoutUnnamedFilesIsToldFromErrors) {
  EXPECT_EQ(File::unnamed("/proc", O_RDWR, 0600, "/proc", doing), std::nullopt);
  EXPECT_EQ(code_of([] { std::ignore = File::unnamed("/nowhere/at/all", O_RDWR, 0600, "mine", doing); }, "mine"),
            ENOENT);
}

TEST_F(FileTest, WhatTheSystemRefusesIsAnIoError) {
  EXPECT_EQ(code_of([] { std::ignore = File::open("/nowhere/at/all", O_RDONLY, doing); }, "/nowhere/at/all"), ENOENT);
  auto const directory = File::open(folder, O_RDONLY, doing);
  std::array<std::byte, 1> one{};
  EXPECT_EQ(code_of([&] { std::ignore = directory.read(0, one, doing); }, folder), EISDIR);
  auto const full = File::open("/dev/full", O_WRONLY, doing);
  EXPECT_EQ(code_of([&] { full.write(0, one, doing); }, "/dev/full"), ENOSPC);
  auto const reading = File::open("/dev/null", O_RDONLY, doing);
  EXPECT_EQ(code_of([&] { reading.write(0, one, doing); }, "/dev/null"), EBADF);
  EXPECT_EQ(code_of([&] { File(UniqueFd{}, "closed").sync(doing); }, "closed"), EBADF);
  EXPECT_EQ(code_of([&] { std::ignore = File(UniqueFd{}, "closed").status(doing); }, "closed"), EBADF);
}

TEST_F(FileTest, WhatIsBeingSyncedMayBeReadAndWritten) {
  std::string const text(3 << 20, 'a');
  file.write(0, bytes_of(text), doing);
  file.begin_to_sync(0, text.size());
  EXPECT_EQ(text_of(file, 0, text.size()), text);
  file.write(1 << 20, bytes_of("and more"), doing);
  file.begin_to_sync(2 << 20, 10 << 20);  // beyond its end
  file.sync(doing);
  EXPECT_EQ(text_of(file, (1 << 20) - 1, 10), "aand morea");
  EXPECT_EQ(file.size(doing), text.size());
}

TEST_F(FileTest, ADeviceThatKeepsNothingNeedsNoSync) {
  auto const nothing = File::open("/dev/null", O_WRONLY, doing);
  nothing.write(0, bytes_of("abc"), doing);
  EXPECT_EQ(code_of([&] { nothing.sync(doing); }, ""), 0);
}

TEST_F(FileTest, AWriteBeyondTheLimitIsAnErrorAndNoSignal) {
  struct ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct ::rlimit const small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  auto const code = code_of([&] { file.write(500, std::vector<std::byte>(1000, std::byte{'x'}), doing); }, folder);
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(code, EFBIG);
  EXPECT_EQ(text_of(file, 500, 1000), std::string(500, 'x'));
}

}  // namespace
}  // namespace unimem::detail
