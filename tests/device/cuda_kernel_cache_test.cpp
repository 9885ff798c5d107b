#include "device/cuda/kernel_cache.hpp"
#include "device/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace unimem::detail::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::Optional;

class KernelCacheTest : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path const& folder() const { return folder_.path(); }

  [[nodiscard]] std::size_t files() const {
    std::size_t count = 0;
    for (auto const& entry : fs::recursive_directory_iterator(folder())) count += entry.is_regular_file() ? 1 : 0;
    return count;
  }

 private:
  TemporaryFolder folder_;
};

void write(fs::path const& path, std::string const& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

TEST_F(KernelCacheTest, GivesBackWhatWasKept) {
  KernelCache const cache{folder() / "deep" / "inside"};
  EXPECT_EQ(cache.find("key"), std::nullopt);
  std::string const binary("\0\n\xFF image", 10);
  cache.keep("key", binary);
  cache.keep("other", "");
  EXPECT_THAT(cache.find("key"), Optional(binary));
  EXPECT_THAT(cache.find("other"), Optional(std::string{}));
  EXPECT_EQ(cache.find("ke"), std::nullopt);
  EXPECT_EQ(files(), 2U) << "nothing unfinished is left";
  EXPECT_THAT(KernelCache{folder() / "deep" / "inside"}.find("key"), Optional(binary));
}

TEST_F(KernelCacheTest, ADefaultOneKeepsNothing) {
  KernelCache const cache;
  cache.keep("key", "value");
  EXPECT_EQ(cache.find("key"), std::nullopt);
}

TEST_F(KernelCacheTest, DamagedEntriesAreReplaced) {
  KernelCache const cache{folder()};
  std::string const key = "key of an entry", value = "what was compiled";
  cache.keep(key, value);
  auto const path = cache.file_of(key);
  auto const whole = content_of(path);
  ASSERT_GT(whole.size(), key.size() + value.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    write(path, damaged);
    EXPECT_EQ(cache.find(key), std::nullopt) << "byte " << i;
    write(path, whole.substr(0, i));
    EXPECT_EQ(cache.find(key), std::nullopt) << i << " bytes";
  }
  write(path, whole + '\0');
  EXPECT_EQ(cache.find(key), std::nullopt) << "a byte too many";
  cache.keep(key, value);
  EXPECT_THAT(cache.find(key), Optional(value));
}

TEST_F(KernelCacheTest, AnotherKeyIsNotTakenForIt) {
  KernelCache const cache{folder()};
  cache.keep("one", "value");
  fs::copy_file(cache.file_of("one"), cache.file_of("two"));
  EXPECT_EQ(cache.find("two"), std::nullopt);
}

TEST_F(KernelCacheTest, AnUnwritableDirectoryIsNoError) {
  write(folder() / "file", "in the way");
  KernelCache const cache{folder() / "file" / "inside"};
  cache.keep("key", "value");
  EXPECT_EQ(cache.find("key"), std::nullopt);
  EXPECT_EQ(content_of(folder() / "file"), "in the way");

  KernelCache const locked{folder() / "locked"};
  locked.keep("before", "value");
  fs::permissions(folder() / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  locked.keep("after", "value");
  EXPECT_THAT(locked.find("before"), Optional(std::string("value")));
  EXPECT_EQ(locked.find("after").has_value(), geteuid() == 0) << "permissions are no matter to root";
  fs::permissions(folder() / "locked", fs::perms::owner_all);
}

TEST_F(KernelCacheTest, WhatWasUsedLongestAgoGoesFirst) {
  constexpr std::size_t size = 1000;
  KernelCache const cache{folder(), 3500};
  auto const age = [&](char const* key, int hours) {
    fs::last_write_time(cache.file_of(key), fs::file_time_type::clock::now() - std::chrono::hours{hours});
  };
  for (auto const* key : {"a", "b", "c"}) cache.keep(key, std::string(size, *key));
  age("a", 3);
  age("b", 2);
  age("c", 1);
  ASSERT_TRUE(cache.find("a")) << "and is the newest now";
  cache.keep("d", std::string(size, 'd'));
  EXPECT_EQ(cache.find("b"), std::nullopt);
  for (auto const* key : {"a", "c", "d"}) EXPECT_THAT(cache.find(key), Optional(std::string(size, *key)));
  cache.keep("huge", std::string(4000, 'x'));
  EXPECT_EQ(cache.find("huge"), std::nullopt) << "more than all there is room for";
  EXPECT_TRUE(cache.find("a"));
}

TEST_F(KernelCacheTest, NothingGoesForWhatCannotBeKept) {
  KernelCache const cache{folder(), 1000};
  cache.keep("a", std::string(300, 'a'));
  cache.keep("b", std::string(300, 'b'));
  EXPECT_FALSE(cache.keep("c", std::string(990, 'c'))) << "no error";
  EXPECT_EQ(cache.find("c"), std::nullopt) << "with its key and heading it is larger than all there is room for";
  EXPECT_TRUE(cache.find("a"));
  EXPECT_TRUE(cache.find("b"));
}

TEST_F(KernelCacheTest, WhatIsKeptIsForTheUserAlone) {
  auto const mask = ::umask(0);
  KernelCache const cache{folder() / "deep" / "inside"};
  cache.keep("key", "value");
  ::umask(mask);
  auto const mode = [](fs::path const& path) { return fs::status(path).permissions() & fs::perms::mask; };
  EXPECT_EQ(mode(cache.file_of("key")), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(mode(folder() / "deep"), fs::perms::owner_all);
  EXPECT_EQ(mode(folder() / "deep" / "inside"), fs::perms::owner_all);
}

TEST_F(KernelCacheTest, OthersNamesAreNotWrittenTo) {
  // A process of another container may have this one's id, and somebody may have laid a link for it.
  KernelCache const cache{folder() / "cache"};
  cache.keep("key", "old");
  write(folder() / "victim", "untouched");
  for (int count = 1; count <= 1000; ++count) {
    auto link = cache.file_of("key");
    link += fmt::format(".{}.{}.unfinished", getpid(), count);
    fs::create_symlink(folder() / "victim", link);
  }
  EXPECT_FALSE(cache.keep("key", "new"));
  EXPECT_EQ(content_of(folder() / "victim"), "untouched");
  EXPECT_FALSE(fs::is_symlink(cache.file_of("key")));
  EXPECT_THAT(cache.find("key"), Optional(std::string("new")));
}

TEST_F(KernelCacheTest, WhatIsNoFileIsNotThere) {
  KernelCache const cache{folder()};
  cache.keep("elsewhere", "value");
  fs::rename(cache.file_of("elsewhere"), folder() / "entry");
  fs::create_symlink(folder() / "entry", cache.file_of("elsewhere"));
  ASSERT_EQ(::mkfifo(cache.file_of("pipe").c_str(), 0600), 0);
  fs::create_directory(cache.file_of("directory"));
  for (auto const* key : {"elsewhere", "pipe", "directory"}) {
    bool damaged = false;
    EXPECT_EQ(cache.find(key, &damaged), std::nullopt) << key;
    EXPECT_TRUE(damaged) << key;
  }
  cache.keep("elsewhere", "another");
  EXPECT_THAT(cache.find("elsewhere"), Optional(std::string("another")));
  EXPECT_NE(content_of(folder() / "entry").find("value"), std::string::npos) << "the link was replaced, not followed";
  EXPECT_TRUE(cache.keep("directory", "value")) << "it says so";
}

TEST_F(KernelCacheTest, WhatADeadProcessLeftUnfinishedIsRemoved) {
  KernelCache const cache{folder()};
  auto const old = folder() / "0123.kernel.1.1.unfinished", fresh = folder() / "0123.kernel.2.1.unfinished";
  write(old, "half");
  write(fresh, "half");
  auto const others = folder() / "symphony.unfinished";
  write(others, "half");
  for (auto const& path : {old, others}) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours{2});
  }
  cache.keep("key", "value");
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh)) << "somebody may be writing it";
  EXPECT_TRUE(fs::exists(others)) << "it is not ours";
}

TEST_F(KernelCacheTest, ConcurrentProcessesSeeWholeEntries) {
  constexpr int processes = 4, rounds = 200, keys = 3;
  auto const value_of = [](int key, int round) {
    return std::string(20'000 + 100 * static_cast<std::size_t>(round), static_cast<char>('a' + key));
  };
  std::vector<pid_t> children;
  for (int p = 0; p < processes; ++p) {
    auto const child = fork();
    ASSERT_GE(child, 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    KernelCache const cache{folder()};
    for (int round = 0; round < rounds; ++round) {
      auto const key = (round + p) % keys;
      cache.keep(fmt::format("key {}", key), value_of(key, round));
      auto const found = cache.find(fmt::format("key {}", key));
      if (!found || found->size() < 20'000 ||
          found->find_first_not_of(static_cast<char>('a' + key)) != std::string::npos) {
        _exit(1);
      }
    }
    _exit(0);
  }
  for (auto const child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(files(), static_cast<std::size_t>(keys));
}

TEST_F(KernelCacheTest, IsWhereTheEnvironmentSays) {
  auto const where = [] { return KernelCache::of_user().file_of("").parent_path(); };
  auto const* const home = std::getenv("HOME");
  std::string const old_home = home != nullptr ? home : "";
  unsetenv("UNIMEM_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/nobody", 1);
  EXPECT_EQ(where(), "/nobody/.cache/unimem/cuda");
  setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(where(), "/caches/unimem/cuda");
  setenv("UNIMEM_CACHE_DIR", "/chosen", 1);
  EXPECT_EQ(where(), "/chosen/cuda");
  for (auto const* name : {"UNIMEM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
  EXPECT_EQ(where(), "") << "nowhere to keep anything";
  if (home != nullptr) setenv("HOME", old_home.c_str(), 1);
}

}  // namespace
}  // namespace unimem::detail::cuda
