#include "file/direct_reader.hpp"

#include <unimem/core/error.hpp>

#include "core/sizes.hpp"
#include "file/cold_file.hpp"
#include "file/failing_calls.hpp"
#include "file/file_reader.hpp"
#include "file/residency.hpp"
#include "random_cases.hpp"
#include "small_disk.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

// Reads past the page cache: by io_uring, and (as direct_threads_test) by threads where there is no ring.

namespace unimem::testing {
namespace {

using detail::BlockReads;
using detail::DirectReader;
using detail::File;
using detail::FileReader;
using detail::ReadWay;
using ::testing::HasSubstr;

constexpr auto doing = "testing it";
detail::ReadTerms const terms{.doing = doing};

/// Memory that begins `skew` bytes behind a page, with some around that nobody may write.
class Target {
 public:
  explicit Target(std::size_t bytes, std::size_t skew = 0) : bytes_(bytes), memory_(bytes + 3 * page, guard) {
    auto const at = reinterpret_cast<std::uintptr_t>(memory_.data()) + page;
    begin_ = memory_.data() + page + (page - at % page) % page + skew % page;
  }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {begin_, bytes_}; }
  [[nodiscard]] bool untouched_around() const {
    auto const* const end = memory_.data() + memory_.size();
    return same(memory_.data(), begin_) && same(begin_ + bytes_, end);
  }

 private:
  static constexpr std::size_t page = 4096;
  static constexpr std::byte guard{0x5A};
  static bool same(std::byte const* begin, std::byte const* end) {
    return *begin == guard && std::memcmp(begin, begin + 1, static_cast<std::size_t>(end - begin) - 1) == 0;
  }
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* begin_;
};

class DirectReads : public ::testing::Test {
 protected:
  static constexpr std::size_t file_bytes = 5 * MiB + 777;

  DirectReads() {
    auto pattern = (std::filesystem::path(::testing::TempDir()) / "unimem-direct-XXXXXX").string();
    auto const descriptor = ::mkostemp(pattern.data(), O_CLOEXEC);
    path = pattern;
    file = File{detail::UniqueFd{descriptor}, path};
    file.write(0, all(), doing);
    make_cold(path);
  }
  ~DirectReads() override { std::filesystem::remove(path); }
  void SetUp() override {
    if (!DirectReader::where_possible(file)) GTEST_SKIP() << "no reads past the page cache in " << ::testing::TempDir();
  }
  void TearDown() override {
    answer_reads(0, 0);
    answer_submissions(0, 0, 0);
  }

  void expect_read(DirectReader const& reader, std::uint64_t offset, std::size_t bytes, std::size_t skew) const {
    Target const target(bytes, skew);
    auto const there = std::min<std::size_t>(bytes, offset < file_bytes ? file_bytes - offset : 0);
    // Told of in the file's order, each byte once, when it is in its place.
    std::size_t told = 0;
    bool in_order = true;
    auto const arrived = [&](std::span<const std::byte> came) {
      in_order &= came.data() == target.bytes().data() + told && told + came.size() <= there &&
                  std::memcmp(came.data(), all().data() + offset + told, came.size()) == 0;
      told += came.size();
    };
    ASSERT_EQ(reader.read(offset, target.bytes(), {.doing = doing, .arrived = arrived}).bytes, there)
        << offset << " +" << bytes << " at " << skew;
    ASSERT_TRUE(in_order && told == there) << offset << " +" << bytes << " at " << skew << ": " << told;
    ASSERT_TRUE(there == 0 || std::memcmp(target.bytes().data(), all().data() + offset, there) == 0)
        << offset << " +" << bytes << " at " << skew;
    ASSERT_TRUE(target.untouched_around()) << offset << " +" << bytes << " at " << skew;
  }
  static std::vector<std::byte> const& all() {
    static auto const bytes = patterned(file_bytes);
    return bytes;
  }
  /// The error of a read.
  static IoError error_of(std::function<void()> const& call) {
    try {
      call();
    } catch (IoError const& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return {"", 0, ""};
  }

  std::string path;
  File file;
};

TEST_F(DirectReads, GiveTheBytesAndLeaveTheCacheAlone) {
  auto const reader = DirectReader::open(file);
  Target const target(file_bytes);
  auto const disk = system_count_of("read_bytes"), asked = system_count_of("rchar");
  auto const count = reader.read(0, target.bytes(), terms);
  auto const read = system_count_of("read_bytes") - disk, copied = system_count_of("rchar") - asked;
  EXPECT_EQ(count.bytes, file_bytes);
  EXPECT_TRUE(std::memcmp(target.bytes().data(), all().data(), file_bytes) == 0);
  EXPECT_EQ(detail::resident_share(file, 0, file_bytes).value_or(0), 0);
  EXPECT_GE(read, file_bytes);
  EXPECT_LT(read, file_bytes + 2 * MiB) << "and parts of the program itself";
  if (count.by_ring) {
    EXPECT_LT(copied, 64 * KiB) << "as the system counts, no call of read";
  }
#if defined(UNIMEM_NO_RINGS)
  EXPECT_FALSE(count.by_ring);
#endif
}

TEST_F(DirectReads, AnyRangeToAnyAddress) {
  auto const reader = DirectReader::open(file);
  auto const block = BlockReads::block_bytes;
  for (auto const offset : {std::size_t{0}, std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{4'097},
                            block - 1, block, 3 * block + 128, file_bytes - 1, file_bytes, file_bytes + 5'000}) {
    for (auto const bytes : {std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{513}, std::size_t{4'096},
                             block - 1, block, block + 1, 3 * block + 100, file_bytes}) {
      for (auto const skew : {std::size_t{0}, offset, offset + 512, std::size_t{1}})
        expect_read(reader, offset, bytes, skew);
    }
  }
}

TEST_F(DirectReads, RandomRanges) {
  auto const reader = DirectReader::open(file);
  expect_in_random_cases(200, [&] {
    auto const offset = *rc::gen::inRange<std::size_t>(0, file_bytes + 1'000);
    auto const bytes = *rc::gen::inRange<std::size_t>(0, 2 * MiB);
    auto const skew = *rc::gen::inRange<std::size_t>(0, 4'096);
    expect_read(reader, offset, bytes, skew);
  });
}

TEST_F(DirectReads, BeyondFourGibibytes) {
  auto const far = 5 * GiB + 12'345;
  file.write(far, patterned(MiB, far), doing);
  make_cold(path);
  auto const reader = DirectReader::open(file);
  Target const target(MiB, far);
  ASSERT_EQ(reader.read(far, target.bytes(), terms).bytes, MiB);
  EXPECT_TRUE(std::ranges::equal(target.bytes(), patterned(MiB, far)));
  ASSERT_EQ(reader.read(4 * GiB - 4'096, target.bytes().first(8'192), terms).bytes, 8'192U);
  EXPECT_TRUE(std::ranges::all_of(target.bytes().first(8'192), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(DirectReads, SeeWhatWasWrittenJustNow) {
  auto const reader = DirectReader::open(file);
  auto const news = patterned(MiB, 99);
  for (std::size_t at = 0; at < 4 * MiB; at += MiB) {
    file.write(at + 300, news, doing);  // in the page cache, and not on the disk
    Target const target(news.size(), 300);
    ASSERT_EQ(reader.read(at + 300, target.bytes(), terms).bytes, news.size());
    ASSERT_TRUE(std::ranges::equal(target.bytes(), news)) << at;
  }
}

TEST_F(DirectReads, TheSameFileWhenItsNameIsAnothers) {
  std::filesystem::remove(path);
  std::ofstream(path) << "another";
  auto const reader = DirectReader::open(file);
  expect_read(reader, 0, file_bytes, 0);
}

TEST_F(DirectReads, EndWhereTheFileHasBecomeShorter) {
  auto const reader = DirectReader::open(file);
  for (auto const left : {3 * MiB + 100, MiB, std::size_t{512}, std::size_t{7}, std::size_t{0}}) {
    ASSERT_EQ(::ftruncate(file.descriptor(), static_cast<::off_t>(left)), 0);
    Target const target(file_bytes);
    EXPECT_EQ(reader.read(0, target.bytes(), terms).bytes, left);
    EXPECT_TRUE(std::equal(all().begin(), all().begin() + static_cast<std::ptrdiff_t>(left), target.bytes().begin()));
  }
}

TEST_F(DirectReads, AskAgainForWhatDidNotCome) {
  auto const reader = DirectReader::open(file);
  for (auto const answer : {-EINTR, -EAGAIN, 512, 1'024, 4'096}) {
    answer_reads(answer, 20);
    expect_read(reader, 300, 4 * MiB, 300);
    answer_reads(answer, 20);
    expect_read(reader, 300, 4 * MiB, 0);
  }
}

TEST_F(DirectReads, DoNotAskForEver) {
  auto const reader = DirectReader::open(file);
  Target const target(MiB);
  answer_reads(-EAGAIN, SIZE_MAX);
  EXPECT_EQ(error_of([&] { static_cast<void>(reader.read(0, target.bytes(), terms)); }).code, EAGAIN);
  answer_reads(0, 0);
  expect_read(reader, 0, file_bytes, 0);
}

TEST_F(DirectReads, ARingThatDoesNotTakeRequestsIsAskedAgainOrGivenUp) {
  auto const reader = DirectReader::open(file);
  Target const target(4 * MiB);
  if (!reader.read(0, target.bytes(), terms).by_ring) GTEST_SKIP() << "there are no rings";
  for (auto const code : {-EINTR, -EAGAIN, -EBUSY}) {
    for (std::size_t taken = 0; taken < 3; ++taken) {
      answer_submissions(code, taken, 50);
      expect_read(reader, 300, 4 * MiB, 300);
    }
  }
  for (std::size_t taken = 0; taken < 2; ++taken) {
    answer_submissions(-EBADF, taken, SIZE_MAX);
    auto const error = error_of([&] { static_cast<void>(reader.read(0, target.bytes(), terms)); });
    EXPECT_EQ(error.code, EBADF);
    EXPECT_THAT(error.what(), HasSubstr("bytes [0, 4194304)"));
    answer_submissions(0, 0, 0);
    expect_read(reader, 0, file_bytes, 0);
  }
}

TEST_F(DirectReads, AFailedRequestIsAnErrorWithItsRange) {
  auto const reader = DirectReader::open(file);
  std::size_t requests = 0;
  for (std::size_t n = 1;; ++n) {
    Target const target(4 * MiB);
    fail_call(n);
    if (n == 1) {
      auto const error = error_of([&] { static_cast<void>(reader.read(0, target.bytes(), terms)); });
      EXPECT_EQ(error.code, EIO);
      EXPECT_EQ(error.path, path);
      EXPECT_THAT(error.what(), HasSubstr("testing it, past the page cache: bytes ["));
      continue;
    }
    bool failed = false;
    try {
      EXPECT_EQ(reader.read(0, target.bytes(), terms).bytes, 4 * MiB);
    } catch (IoError const& error) {
      failed = true;
      EXPECT_EQ(error.code, EIO);
    }
    bool const none_left = call_is_to_fail();
    fail_call(0);
    ASSERT_EQ(failed, !none_left);
    if (none_left) break;
    ++requests;
  }
  EXPECT_EQ(requests + 1, 4 * MiB / BlockReads::block_bytes);
  expect_read(reader, 0, file_bytes, 0);
}

TEST_F(DirectReads, StopWhenAsked) {
  auto const reader = DirectReader::open(file);
  Target const target(file_bytes);
  std::atomic<int> looks{0};
  auto const disk = system_count_of("read_bytes");
  static_cast<void>(reader.read(0, target.bytes(), {.doing = doing, .stop = [&] { return ++looks > 10; }}));
  EXPECT_LT(system_count_of("read_bytes") - disk, file_bytes * 7 / 8) << "ten blocks, and parts of the program itself";
}

TEST_F(DirectReads, FromSeveralThreadsAtOnce) {
  auto const reader = DirectReader::open(file);
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (std::size_t i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t turn = 0; turn < 4; ++turn)
        expect_read(reader, i * 12'345 + turn, MiB + i, i % 2 == 0 ? i * 12'345 + turn : 0);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(DirectReads, AreWhatColdBytesComeBy) {
  FileReader const reader(file, ReadWay::by_residency);
  Target const target(file_bytes);
  auto const read = [&](std::size_t bytes, bool again = false) {
    auto const count = reader.read(file, 0, target.bytes().first(bytes), {.doing = doing, .comes_again = again});
    EXPECT_EQ(count.bytes, bytes);
    EXPECT_TRUE(std::memcmp(target.bytes().data(), all().data(), bytes) == 0);
    return count.direct;
  };
  EXPECT_EQ(read(file_bytes), file_bytes);
  EXPECT_EQ(read(file_bytes), file_bytes) << "it left nothing there";
  EXPECT_EQ(read(FileReader::least_direct - 1), 0U) << "too little to be worth it";
  make_cold(path);
  EXPECT_EQ(read(file_bytes, true), 0U) << "it comes again: the cache is to have it";
  EXPECT_EQ(read(file_bytes), 0U) << "and has it";
  EXPECT_EQ(FileReader(file, ReadWay::direct).read(file, 0, target.bytes(), terms).direct, file_bytes) << "as was said";
  make_cold(path);
  EXPECT_EQ(FileReader(file, ReadWay::cached).read(file, 0, target.bytes(), terms).direct, 0U) << "as was said";
  make_cold(path);
}

TEST_F(DirectReads, GiveWayWhereTheSystemRefusesThem) {
  FileReader const reader(file, ReadWay::by_residency), strict(file, ReadWay::direct);
  Target const target(MiB);
  answer_reads(-EINVAL, 1);
  EXPECT_EQ(error_of([&] { static_cast<void>(strict.read(file, 0, target.bytes(), terms)); }).code, EINVAL);
  answer_reads(-EINVAL, 1);
  EXPECT_EQ(reader.read(file, 0, target.bytes(), terms).direct, 0U);
  EXPECT_TRUE(std::ranges::equal(target.bytes(), patterned(MiB)));
}

TEST(DirectReadsOfMemory, AreRefusedAndSoSaid) {
  auto const folder = std::filesystem::path(::testing::TempDir()) / ("unimem-disk-" + std::to_string(::getpid()));
  SmallDisk const disk(folder, 8 * MiB);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount here: " << disk.reason();
  auto const path = disk.path() + "/file";
  auto const file = File::unnamed(disk.path(), O_RDWR, 0600, path, doing).value();
  file.write(0, patterned(2 * MiB), doing);
  EXPECT_FALSE(DirectReader::where_possible(file));
  EXPECT_THROW(static_cast<void>(DirectReader::open(file)), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(FileReader(file, ReadWay::direct)), UnsupportedOperation);
  Target const target(2 * MiB);
  auto const count = FileReader(file, ReadWay::by_residency).read(file, 0, target.bytes(), terms);
  EXPECT_EQ(count.bytes, 2 * MiB);
  EXPECT_EQ(count.direct, 0U);
  EXPECT_TRUE(std::ranges::equal(target.bytes(), patterned(2 * MiB)));
}

}  // namespace
}  // namespace unimem::testing
