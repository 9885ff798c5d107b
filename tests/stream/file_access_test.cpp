#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>

#include "file/cold_file.hpp"
#include "file/direct_reader.hpp"
#include "random_cases.hpp"
#include "small_disk.hpp"
#include "stream/file_buffer_fixture.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <stop_token>
#include <string>
#include <tuple>
#include <vector>

// By which way bytes of a file come, to buffers and through streams: said by the caller, or chosen by what the page
// cache has; the bytes are the same.

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;

/// The file system of the test's folder has a disk beneath.
bool reads_directly(std::filesystem::path const& path) {
  return detail::DirectReader::where_possible(detail::File::open(path.string(), O_RDONLY, "testing it")).has_value();
}

class FileWays : public FileBuffers {
 protected:
  void SetUp() override {
    FileBuffers::SetUp();
    path = folder.write("words", numbers());
    make_cold(path);
    if (!reads_directly(path)) GTEST_SKIP() << "no reads past the page cache in " << path;
  }
  [[nodiscard]] FileOptions by(FileAccess access, FileMode mode = FileMode::read) {
    auto made = options(mode);
    made.access = access;
    return made;
  }
  [[nodiscard]] std::uint64_t direct_bytes() const { return manager.statistics().file_direct_bytes; }

  std::filesystem::path path;
};

/// All words of a buffer, in pieces that fit beside others.
void expect_numbers(UnifiedBuffer<std::uint32_t>& buffer, std::uint32_t first = 0) {
  constexpr std::size_t step = 2 * MiB / sizeof(std::uint32_t);
  for (std::size_t begin = 0; begin < buffer.size(); begin += step) {
    auto part = buffer.slice(begin, std::min(step, buffer.size() - begin));
    auto const mapped = part.map(MapMode::read);
    for (std::size_t i = 0; i < mapped.size(); ++i) ASSERT_EQ(mapped[i], first + begin + i);
  }
}

TEST_F(FileWays, GiveEqualBytesOnHostAndDevices) {
  for (auto const access : {FileAccess::automatic, FileAccess::direct, FileAccess::cached}) {
    SCOPED_TRACE(to_string(access));
    {
      auto buffer = from_file<Word>(path, by(access));
      expect_numbers(buffer);
    }
    for (auto* const on : {&sim, &device("cpu")}) {
      auto buffer = from_file<Word>(path, by(access));
      auto part = buffer.slice(1'001, file_words / 4);
      auto const there = part.device_view(*on);
      auto const seen = std::span{there.data(), there.size()};
      for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], 1'001 + i) << on->id();
    }
  }
}

TEST_F(FileWays, AColdFileGoesPastTheCacheAndAWarmOneDoesNot) {
  auto const disk = system_count_of("read_bytes");
  {
    auto buffer = from_file<Word>(path, by(FileAccess::automatic));
    expect_numbers(buffer);
  }
  EXPECT_EQ(bytes_read(), file_bytes);
  EXPECT_EQ(direct_bytes(), file_bytes);
  EXPECT_GE(system_count_of("read_bytes") - disk, file_bytes);
  EXPECT_LT(system_count_of("read_bytes") - disk, file_bytes + 4 * MiB)
      << "each byte once, and parts of the program itself";

  make_warm(path);
  auto const warm = system_count_of("read_bytes");
  auto buffer = from_file<Word>(path, by(FileAccess::automatic));
  expect_numbers(buffer);
  EXPECT_EQ(direct_bytes(), file_bytes) << "no more of them";
  EXPECT_LT(system_count_of("read_bytes") - warm, 4 * MiB);
}

TEST_F(FileWays, SaidByTheCallerHoldForEveryByte) {
  make_warm(path);
  {
    auto buffer = from_file<Word>(path, by(FileAccess::direct));
    auto part = buffer.slice(777, 1'001);
    EXPECT_EQ(part.map(MapMode::read)[0], 777U);
    EXPECT_EQ(direct_bytes(), 1'001 * sizeof(Word));
    expect_numbers(buffer);
    EXPECT_EQ(direct_bytes(), bytes_read());
  }
  auto const before = direct_bytes();
  make_cold(path);
  auto buffer = from_file<Word>(path, by(FileAccess::cached));
  expect_numbers(buffer);
  EXPECT_EQ(direct_bytes(), before);
}

TEST_F(FileWays, WhatComesAgainComesByTheCache) {
  manager.set_limit(device("cpu"), file_bytes / 4);
  auto const disk = system_count_of("read_bytes");
  auto buffer = from_file<Word>(path, by(FileAccess::automatic));
  for (int pass = 0; pass < 5; ++pass) expect_numbers(buffer);
  EXPECT_GT(bytes_read(), 3 * file_bytes) << "there is no room for it";
  EXPECT_LE(direct_bytes(), file_bytes);
  // Once past the cache, and once to it; it reads ahead of what is asked for.
  EXPECT_LT(system_count_of("read_bytes") - disk, 2 * file_bytes + 8 * MiB);
}

TEST_F(FileWays, FromAnyOffset) {
  expect_in_random_cases(25, [&] {
    auto const access = *rc::gen::element(FileAccess::automatic, FileAccess::direct, FileAccess::cached);
    auto made = by(access);
    made.offset = *rc::gen::inRange<std::uint64_t>(0, file_bytes);
    made.count = static_cast<std::size_t>(*rc::gen::inRange<std::uint64_t>(0, file_bytes - made.offset + 1));
    if (*rc::gen::arbitrary<bool>()) make_cold(path);
    auto buffer = from_file<std::byte>(path, made);
    auto const begin = *rc::gen::inRange<std::size_t>(0, *made.count + 1);
    auto part = buffer.slice(begin, std::min<std::size_t>(*made.count - begin, 3 * MiB));
    auto const words = numbers();
    std::vector<std::byte> const there = part.to_vector();
    bool const same =
        there.empty() ||
        std::memcmp(there.data(), std::as_bytes(std::span{words}).data() + made.offset + begin, there.size()) == 0;
    RC_ASSERT(same);
  });
}

TEST_F(FileWays, WhatWasWrittenIsReadBack) {
  auto buffer = from_file<Word>(path, by(FileAccess::direct, FileMode::read_write));
  for (std::size_t at = 3; at < file_words; at += 100'000) set(buffer, at, 4'000'000'000U);
  buffer.flush();
  auto again = from_file<Word>(path, by(FileAccess::direct));
  for (auto* const each : {&again, &buffer}) {
    std::uint64_t found = 0;
    for (std::size_t begin = 0; begin < file_words; begin += step) {
      auto part = each->slice(begin, step);
      auto const mapped = part.map(MapMode::read);
      for (std::size_t i = 0; i < mapped.size(); ++i) {
        bool const changed = (begin + i) % 100'000 == 3;
        ASSERT_EQ(mapped[i], changed ? 4'000'000'000U : begin + i);
        found += changed ? 1 : 0;
      }
    }
    EXPECT_EQ(found, (file_words - 4) / 100'000 + 1);
  }
}

TEST_F(FileWays, AFileThatHasBecomeShorterIsAnErrorWithTheRange) {
  auto buffer = from_file<Word>(path, by(FileAccess::direct));
  std::filesystem::resize_file(path, file_bytes / 2 + 100);
  auto part = buffer.slice(file_words / 2 - 1'000, 100'000);
  try {
    static_cast<void>(part.map(MapMode::read));
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, path);
    EXPECT_THAT(error.what(), HasSubstr("it ends at " + std::to_string(file_bytes / 2 + 100)));
  }
  auto rest = buffer.slice(0, file_words / 8);
  EXPECT_EQ(rest.map(MapMode::read)[1'234], 1'234U);
}

TEST_F(FileBuffers, WithoutADiskBeneathSayWhatCannotBe) {
  SmallDisk const disk(folder / "disk", 8 * MiB);
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount here: " << disk.reason();
  auto const path = folder.write("disk/words", numbers(MiB));
  auto asked = options();
  asked.access = FileAccess::direct;
  EXPECT_THROW(static_cast<void>(from_file<Word>(path, asked)), UnsupportedOperation);
  StreamOptions streamed;
  streamed.access = FileAccess::direct;
  streamed.device = &sim;
  EXPECT_THROW(static_cast<void>(stream_file(path, histogram(), streamed)), UnsupportedOperation);
  streamed.access = FileAccess::automatic;
  EXPECT_EQ(stream_file(path, histogram(), streamed).access, FileAccess::cached);
  auto buffer = from_file<Word>(path, options());
  expect_numbers(buffer);
  EXPECT_EQ(manager.statistics().file_direct_bytes, 0U);
}

/// Streams of a file on a device.
class StreamWays : public FileWays, public ::testing::WithParamInterface<char const*> {
 protected:
  [[nodiscard]] Device& on() { return std::string_view(GetParam()) == "sim" ? sim : device(GetParam()); }
  [[nodiscard]] bool in_place() { return on().reaches_host_memory(); }
  [[nodiscard]] StreamOptions streamed(FileAccess access) {
    StreamOptions made;
    made.device = &on();
    made.access = access;
    made.chunk_bytes = MiB;
    made.manager = &manager;
    return made;
  }
};

std::array<std::uint64_t, 256> counts_of(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 256> counts{};
  for (auto const byte : bytes) ++counts[std::to_integer<std::size_t>(byte)];
  return counts;
}

TEST_P(StreamWays, GiveEqualResultsAndTellTheWay) {
  auto const words = numbers();
  auto const counts = counts_of(std::as_bytes(std::span{words}));
  auto const warm_way = in_place() ? FileAccess::mapped : FileAccess::cached;
  struct {
    FileAccess asked;
    bool cold;
    FileAccess came;
  } const cases[] = {{FileAccess::automatic, true, FileAccess::direct},
                     {FileAccess::automatic, false, warm_way},
                     {FileAccess::direct, true, FileAccess::direct},
                     {FileAccess::direct, false, FileAccess::direct},
                     {FileAccess::cached, true, warm_way},
                     {FileAccess::cached, false, warm_way}};
  for (auto const& each : cases) {
    SCOPED_TRACE(std::string(to_string(each.asked)) + (each.cold ? ", cold" : ", warm"));
    if (each.cold) {
      make_cold(path);
    } else {
      make_warm(path);
    }
    auto const result = stream_file(path, histogram(), streamed(each.asked));
    EXPECT_EQ(std::get<HistogramResult>(result.result).counts, counts);
    EXPECT_EQ(result.access, each.came);
    EXPECT_EQ(result.direct_bytes, each.came == FileAccess::direct ? file_bytes : 0U);
  }
}

TEST_P(StreamWays, MappedIsRefusedWhereItCannotBe) {
  if (in_place()) {
    EXPECT_EQ(stream_file(path, histogram(), streamed(FileAccess::mapped)).access, FileAccess::mapped);
  } else {
    EXPECT_THROW(static_cast<void>(stream_file(path, histogram(), streamed(FileAccess::mapped))), UnsupportedOperation);
  }
}

TEST_P(StreamWays, BehindAHeaderAndToAnOutput) {
  auto const words = numbers(2'000'001);
  std::string header = "\x93NUMPY\x01";
  header += std::string("\0\x76\0", 3);
  header += "{'descr': '<u4', 'fortran_order': False, 'shape': (2000001,), }";
  header.resize(127, ' ');
  header += '\n';
  auto const data = std::string(reinterpret_cast<char const*>(words.data()), words.size() * sizeof(Word));
  auto const npy = folder.write("words.npy", header + data);
  for (auto const access : {FileAccess::automatic, FileAccess::direct, FileAccess::cached}) {
    make_cold(npy);
    auto made = streamed(access);
    made.output = folder / "out.npy";
    auto const result = stream_file(npy, affine(ElementType::u32, 2, 1), made);
    EXPECT_EQ(result.bytes, data.size());
    auto const written = folder.read("out.npy");
    ASSERT_EQ(written.size(), header.size() + data.size()) << to_string(access);
    for (std::size_t i = 0; i < words.size(); ++i) {
      Word word = 0;
      std::memcpy(&word, written.data() + header.size() + i * sizeof(Word), sizeof word);
      ASSERT_EQ(word, 2 * i + 1) << to_string(access);
    }
  }
}

TEST_P(StreamWays, AFileThatShrinksIsAnError) {
  auto made = streamed(FileAccess::direct);
  made.buffers = 1;
  made.progress = [&](std::uint64_t done, std::uint64_t) {
    if (done != 0) std::filesystem::resize_file(path, 5 * MiB);
  };
  try {
    static_cast<void>(stream_file(path, histogram(), made));
    FAIL() << "no error";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("shrank while it was read"));
  }
}

TEST_P(StreamWays, StopWhenAsked) {
  std::stop_source stop;
  auto made = streamed(FileAccess::direct);
  made.cancel = stop.get_token();
  made.progress = [&](std::uint64_t done, std::uint64_t) {
    if (done != 0) stop.request_stop();
  };
  EXPECT_THROW(static_cast<void>(stream_file(path, histogram(), made)), StreamCancelled);
}

TEST_P(StreamWays, AColdFileIsReadInPlaceWhereThereIsNoMemoryForIt) {
  if (!in_place()) GTEST_SKIP() << "chunks need memory whichever way they come";
  manager.set_limit(device("cpu"), 4 * MiB);
  auto const result = stream_file(path, histogram(), streamed(FileAccess::automatic));
  EXPECT_EQ(result.access, FileAccess::mapped);
  EXPECT_EQ(result.bytes, file_bytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, StreamWays, ::testing::Values("cpu", "sim"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace
}  // namespace unimem::testing
