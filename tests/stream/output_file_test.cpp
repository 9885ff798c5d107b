#include "stream/output_file.hpp"
#include "stream/input.hpp"

#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>

#include "stream/scratch_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

namespace unimem::detail {
namespace {

using ::testing::ElementsAre;

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span{text});
}

TEST(OutputFile, AppearsOnlyWhenCommitted) {
  ScratchFolder const folder;
  folder.write("out", std::string_view("old"));
  {
    OutputFile output(folder / "out");
    output.write(bytes("new "));
    output.write(bytes("contents"));
    EXPECT_EQ(folder.read("out"), "old");
    EXPECT_THAT(folder.names(), ElementsAre("out")) << "the new one has no name";
    output.commit();
  }
  EXPECT_EQ(folder.read("out"), "new contents");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputFile, LeavesNothingWhenItIsGivenUp) {
  ScratchFolder const folder;
  {
    OutputFile output(folder / "out");
    output.write(bytes("half"));
    EXPECT_TRUE(folder.names().empty());
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(OutputFile, ReplacesWhatCameToItsPlaceMeanwhile) {
  ScratchFolder const folder;
  OutputFile output(folder / "out");
  output.write(bytes("new"));
  folder.write("out", std::string_view("somebody else's"));
  output.commit();
  EXPECT_EQ(folder.read("out"), "new");
  EXPECT_THAT(folder.names(), ElementsAre("out"));
}

TEST(OutputFile, ANameMayHaveTheSystemsLength) {
  ScratchFolder const folder;
  std::string const name(255, 'x');
  for (auto const* const text : {"first", "second"}) {
    OutputFile output(folder / name);
    output.write(bytes(text));
    output.commit();
    EXPECT_EQ(folder.read(name), text);
  }
  EXPECT_THAT(folder.names(), ElementsAre(name));
}

TEST(OutputFile, IsNotPlacedAfterItsRemoval) {
  ScratchFolder const folder;
  folder.write("old", std::string_view("old"));
  OutputFile fresh(folder / "new"), replacing(folder / "old");
  fresh.write(bytes("x"));
  replacing.write(bytes("x"));
  remove_unfinished_outputs();
  EXPECT_THROW(fresh.commit(), IoError);
  EXPECT_THROW(replacing.commit(), IoError);
  EXPECT_THAT(folder.names(), ElementsAre("old"));
  EXPECT_EQ(folder.read("old"), "old");
}

TEST(OutputFile, FollowsALinkToWhereNothingIsYet) {
  ScratchFolder const folder;
  std::filesystem::create_directory(folder / "below");
  std::filesystem::create_symlink("below/second", folder / "first");
  std::filesystem::create_symlink("../real", folder / "below/second");
  OutputFile output(folder / "first");
  output.write(bytes("new"));
  output.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "first"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "below/second"));
  EXPECT_EQ(folder.read("real"), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "real"));

  std::filesystem::create_symlink("round", folder / "round");
  try {
    OutputFile const endless(folder / "round");
    ADD_FAILURE() << "it leads nowhere";
  } catch (IoError const& error) {
    EXPECT_EQ(error.code, ELOOP);
  }
}

TEST(OutputFile, KeepsPermissionsAndLinkOfTheOldFile) {
  ScratchFolder const folder;
  folder.write("real", std::string_view("old"));
  std::filesystem::permissions(folder / "real", std::filesystem::perms(0640));
  std::filesystem::create_symlink("real", folder / "link");
  OutputFile output(folder / "link");
  output.write(bytes("new"));
  output.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(folder.read("real"), "new");
  EXPECT_EQ(std::filesystem::status(folder / "real").permissions(), std::filesystem::perms(0640));
}

TEST(OutputFile, RefusesWhatItCannotWrite) {
  ScratchFolder const folder;
  auto const code = [&](std::filesystem::path const& path) {
    try {
      OutputFile const output(path);
    } catch (IoError const& error) {
      return error.code;
    }
    return -1;
  };
  EXPECT_EQ(code(folder / ""), EISDIR);
  EXPECT_EQ(code(folder / "missing/out"), ENOENT);
  folder.write("file", std::string_view());
  EXPECT_EQ(code(folder / "file/out"), ENOTDIR);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code(folder / "pipe"), 0);
  EXPECT_THAT(folder.names(), ElementsAre("file", "pipe"));
}

TEST(OutputFile, RefusesTheInputUnderAnyName) {
  ScratchFolder const folder;
  folder.write("in", std::string_view("data"));
  std::filesystem::create_hard_link(folder / "in", folder / "other");
  std::filesystem::create_symlink("in", folder / "link");
  std::array const paths{folder / "in"};
  Input const input(paths, ReadWay::cached, 0);
  for (auto const* const name : {"in", "other", "link"}) {
    EXPECT_THROW(input.check_is_not(folder / name, "output"), InvalidArgument) << name;
  }
  EXPECT_EQ(folder.read("in"), "data");
}

TEST(OutputFile, ADeviceIsWrittenToAndNotReplaced) {
  OutputFile null("/dev/null");
  null.write(bytes("gone"));
  null.commit();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));

  OutputFile full("/dev/full");
  try {
    full.write(bytes("too much"));
    ADD_FAILURE() << "written";
  } catch (IoError const& error) {
    EXPECT_EQ(error.code, ENOSPC);
    EXPECT_EQ(error.path, "/dev/full");
  }
}

}  // namespace
}  // namespace unimem::detail
