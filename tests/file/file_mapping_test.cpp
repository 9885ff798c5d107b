#include "file/file_mapping.hpp"

#include <unimem/core/error.hpp>

#include "file/bus_guard.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

// Files in place, and what becomes of pages that turn out to be missing.

namespace unimem::detail {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

/// A file without a name of so many bytes, each of which is its number.
std::shared_ptr<File const> file_of(std::size_t bytes) {
  auto const folder = ::testing::TempDir();
  auto file = File::unnamed(folder, O_RDWR, 0600, "numbers", "testing it");
  if (!file) throw IoError(folder, EOPNOTSUPP, "no files without names");
  std::vector<std::byte> contents(bytes);
  for (std::size_t i = 0; i < bytes; ++i) contents[i] = static_cast<std::byte>(i);
  file->write(0, contents, "testing it");
  return std::make_shared<File const>(*std::move(file));
}

void resize(File const& file, std::size_t bytes) {
  ASSERT_EQ(::ftruncate(file.descriptor(), static_cast<::off_t>(bytes)), 0);
}

std::span<std::byte const> shown_by(FileMapping const& mapping) {
  return {mapping.address(), mapping.bytes()};
}

TEST(FileMappings, ShowPartsFromAnywhereOn) {
  auto const file = file_of(3 * page);
  for (auto const offset : {std::size_t{0}, std::size_t{1}, page - 1, page, 2 * page + 77, 3 * page - 1}) {
    FileMapping const mapping(file, offset, 3 * page - offset);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapping.address()) % page, offset % page);
    EXPECT_EQ(mapping.bytes(), 3 * page - offset);
    for (std::size_t i = 0; i < mapping.bytes(); ++i) {
      ASSERT_EQ(std::to_integer<std::uint8_t>(mapping.address()[i]), static_cast<std::uint8_t>(offset + i));
    }
    mapping.will_need({0, mapping.bytes()});
    mapping.check({0, mapping.bytes()});
  }
}

TEST(FileMappings, SayWhatIsMissing) {
  auto const file = file_of(200 * page);
  FileMapping const mapping(file, 10, 200 * page - 20);
  resize(*file, 100 * page + 5);
  EXPECT_EQ(std::to_integer<int>(shown_by(mapping)[100 * page]), 0) << "behind the end, within its page";
  EXPECT_THAT(shown_by(mapping).subspan(101 * page - 10), Each(std::byte{0xCD}));
  mapping.check({0, 100 * page - 5});
  mapping.check({150 * page, 150 * page});
  try {
    mapping.check({0, 100 * page - 4});
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, "numbers");
    EXPECT_THAT(error.what(), AllOf(HasSubstr("[10, " + std::to_string(100 * page + 6) + ")"),
                                    HasSubstr("it ends at " + std::to_string(100 * page + 5))));
  }
  // As long again, with zeros: those that were missing are not taken for data.
  resize(*file, 200 * page);
  mapping.check({0, 101 * page - 10});
  EXPECT_THROW(mapping.check({101 * page - 10, 101 * page - 9}), IoError);
  EXPECT_THROW(mapping.check({199 * page, 199 * page + 1}), IoError);
  EXPECT_THAT(shown_by(mapping).last(page), Each(std::byte{0xCD}));
  FileMapping const again(file, 10, 200 * page - 20);
  again.check({0, again.bytes()});
  EXPECT_THAT(shown_by(again).last(page), Each(std::byte{0}));
}

/// A mapped page without a file behind it.
class Hole {
 public:
  Hole() {
    auto* const at = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, file_->descriptor(), 0);
    EXPECT_NE(at, MAP_FAILED);
    address_ = static_cast<std::byte const volatile*>(at);
    resize(*file_, 0);
  }
  Hole(Hole const&) = delete;
  Hole& operator=(Hole const&) = delete;
  ~Hole() { ::munmap(const_cast<std::byte*>(address_), page); }

  void touch() const { static_cast<void>(*address_); }

 private:
  std::shared_ptr<File const> file_ = file_of(page);
  std::byte const volatile* address_ = nullptr;
};

using BusGuardDeathTest = ::testing::Test;

TEST(BusGuardDeathTest, WhatIsNotGuardedStillEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        std::byte unrelated{};
        GuardedRegion const region(&unrelated, 1);
        // No sanitizer's handler before ours: what is to be seen is the signal.
        Hole const hole;
        hole.touch();
        std::_Exit(0);
      },
      [](int status) { return !(WIFEXITED(status) && WEXITSTATUS(status) == 0); }, "");
}

::sigjmp_buf elsewhere;
void jump_elsewhere(int /*signal*/) {
  siglongjmp(elsewhere, 1);
}

TEST(BusGuardDeathTest, AnEarlierHandlerGetsWhatIsNotGuarded) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        std::signal(SIGBUS, jump_elsewhere);
        std::byte unrelated{};
        GuardedRegion const region(&unrelated, 1);
        Hole const hole;
        if (sigsetjmp(elsewhere, 1) == 0)
          hole.touch();
        else
          std::_Exit(region.broken() ? 1 : 77);
      },
      ::testing::ExitedWithCode(77), "");
}

}  // namespace
}  // namespace unimem::detail
