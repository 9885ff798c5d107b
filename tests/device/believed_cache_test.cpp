#include "core/disk_cache.hpp"
#include "core/own_files.hpp"
#include "device/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>

// Whose entries a cache on disk believes. A checksum is right in an entry of anybody's.

namespace unimem::detail {
namespace {

namespace fs = std::filesystem;
using ::testing::Optional;

constexpr uid_t another_user = 65534;

class BelievedCache : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(cache_.keep("key", "value")); }

  /// Nothing is found, nothing can be kept, and why.
  void expect_disbelief(Disbelief reason) {
    EXPECT_EQ(cache_.find("key"), std::nullopt);
    EXPECT_EQ(cache_.keep("key", "another"), make_error_code(reason));
    EXPECT_EQ(cache_.find("key"), std::nullopt);
  }

  TemporaryFolder parent_;
  fs::path const folder_ = parent_ / "cache";
  DiskCache const cache_{folder_, "thing", 1 << 20};
};

TEST_F(BelievedCache, AFolderWritableByOthersIsNot) {
  for (auto const mode : {0777U, 0770U, 0707U}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    expect_disbelief(Disbelief::writable);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  EXPECT_THAT(cache_.find("key"), Optional(std::string("value"))) << "reading is anybody's";
}

TEST_F(BelievedCache, AFolderOfAnotherUserIsNot) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a folder away";
  ASSERT_EQ(::chown(folder_.c_str(), another_user, another_user), 0);
  expect_disbelief(Disbelief::anothers);
}

TEST_F(BelievedCache, ALinkToAFolderIsNot) {
  fs::rename(folder_, parent_ / "elsewhere");
  fs::create_directory_symlink(parent_ / "elsewhere", folder_);
  expect_disbelief(Disbelief::link);
  EXPECT_EQ(make_error_code(Disbelief::link).message(), "a symbolic link is in its place");
}

TEST_F(BelievedCache, AnEntryWritableByOthersIsNot) {
  for (auto const mode : {0620U, 0602U}) {
    ASSERT_EQ(::chmod(cache_.file_of("key").c_str(), mode), 0);
    bool damaged = false;
    EXPECT_EQ(cache_.find("key", &damaged), std::nullopt);
    EXPECT_TRUE(damaged);
    EXPECT_FALSE(cache_.keep("key", "another"));
    EXPECT_THAT(cache_.find("key"), Optional(std::string("another")));
  }
}

TEST_F(BelievedCache, AnotherUsersEntryIsNot) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  ASSERT_EQ(::chown(cache_.file_of("key").c_str(), another_user, another_user), 0);
  bool damaged = false;
  EXPECT_EQ(cache_.find("key", &damaged), std::nullopt);
  EXPECT_TRUE(damaged);
  EXPECT_FALSE(cache_.keep("key", "another"));
  EXPECT_THAT(cache_.find("key"), Optional(std::string("another")));
}

}  // namespace
}  // namespace unimem::detail
