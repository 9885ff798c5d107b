#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/stream/checksum_mismatch.hpp>
#include <unimem/stream/stream_file.hpp>

#include "core/unique_fd.hpp"
#include "stream/npy.hpp"
#include "stream/scratch_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <array>
#include <random>
#include <span>
#include <string>
#include <vector>

// Streams that go on where another was interrupted.

namespace unimem {
namespace {

using ::testing::HasSubstr;

class ResumedStream : public ::testing::TestWithParam<char const*> {
 protected:
  static constexpr std::size_t chunk = 64 << 10;
  static constexpr std::size_t size = 9 * chunk + 4'000;

  void SetUp() override {
    options.device = &device(GetParam());
    options.chunk_bytes = chunk;
    options.buffers = 2;
    options.output = folder / "out";
    options.resume = true;
  }

  [[nodiscard]] StreamResult run(StreamOptions const& with) const { return stream_file(path, kernel, with); }

  /// Begins, and is interrupted when so many bytes are done.
  void interrupt_after(std::uint64_t bytes) const {
    struct Interrupted {};
    auto now = options;
    now.progress = [&](std::uint64_t done, std::uint64_t) {
      if (done >= bytes) throw Interrupted{};
    };
    EXPECT_THROW(static_cast<void>(run(now)), Interrupted);
    EXPECT_TRUE(folder.names().contains("out.unimem-journal"));
    EXPECT_FALSE(folder.names().contains("out"));
  }

  void expect_whole_output() const {
    auto expected = bytes;
    for (auto& byte : expected) byte = static_cast<std::uint8_t>(std::min(255, byte + 1));
    EXPECT_EQ(folder.read_elements<std::uint8_t>("out"), expected);
    EXPECT_EQ(folder.names(), (std::set<std::string>{"in", "out"}));
  }

  std::string complaint() const {
    try {
      static_cast<void>(run(options));
    } catch (Error const& error) {
      return error.what();
    }
    return "";
  }

  ScratchFolder folder;
  std::vector<std::uint8_t> bytes = mixed_bytes(size, 1);
  std::filesystem::path path = folder.write("in", bytes);
  StreamKernel kernel = affine(ElementType::u8, 1, 1);
  StreamOptions options;
};

TEST_P(ResumedStream, WithoutAnInterruptionIsAsAnyOther) {
  auto const result = run(options);
  EXPECT_EQ(result.resumed_bytes, 0U);
  expect_whole_output();
}

TEST_P(ResumedStream, GoesOnBehindTheLastChunk) {
  interrupt_after(4 * chunk);
  std::vector<std::uint64_t> told;
  options.progress = [&](std::uint64_t done, std::uint64_t) { told.push_back(done); };
  auto const result = run(options);
  EXPECT_GE(result.resumed_bytes, 4 * chunk);
  EXPECT_EQ(result.resumed_bytes % chunk, 0U);
  EXPECT_EQ(result.chunks, (size - result.resumed_bytes + chunk - 1) / chunk);
  EXPECT_EQ(told.front(), result.resumed_bytes);
  EXPECT_EQ(told.back(), size);
  EXPECT_EQ(result.bytes, size);
  EXPECT_EQ(std::get<MappingResult>(result.result).elements, size);
  expect_whole_output();
}

TEST_P(ResumedStream, MayBeInterruptedAgainAndAgain) {
  for (std::uint64_t done = 0; done < size - chunk; done += 2 * chunk) interrupt_after(done);
  EXPECT_GE(run(options).resumed_bytes, 6 * chunk);
  expect_whole_output();
}

TEST_P(ResumedStream, ComputesAnewWhatIsNotWhatWasWritten) {
  interrupt_after(6 * chunk);
  auto part = folder.read("out.unimem-part");
  part[2 * chunk + 17] ^= 1;
  folder.write("out.unimem-part", std::string_view(part));
  EXPECT_EQ(run(options).resumed_bytes, 2 * chunk);
  expect_whole_output();
}

TEST_P(ResumedStream, ComputesAnewWhatIsMissing) {
  interrupt_after(6 * chunk);
  std::filesystem::resize_file(folder / "out.unimem-part", 3 * chunk + 1);
  EXPECT_EQ(run(options).resumed_bytes, 3 * chunk);
  expect_whole_output();
  std::filesystem::remove(folder / "out");
  interrupt_after(6 * chunk);
  std::filesystem::remove(folder / "out.unimem-part");
  EXPECT_EQ(run(options).resumed_bytes, 0U);
  expect_whole_output();
}

TEST_P(ResumedStream, AJournalThatWasCutOffAnywhereServesAsFarAsItGoes) {
  interrupt_after(6 * chunk);
  auto const journal = folder.read("out.unimem-journal"), part = folder.read("out.unimem-part");
  std::uint64_t before = 0;
  for (std::size_t length = 0; length < journal.size(); length += 29) {
    folder.write("out.unimem-journal", std::string_view(journal).substr(0, length));
    folder.write("out.unimem-part", std::string_view(part));
    auto const result = run(options);
    EXPECT_GE(result.resumed_bytes, before);
    before = result.resumed_bytes;
    expect_whole_output();
  }
  EXPECT_GE(before, 5 * chunk);
}

TEST_P(ResumedStream, AFlippedBitInTheJournalIsNeverBelieved) {
  interrupt_after(6 * chunk);
  auto const journal = folder.read("out.unimem-journal"), part = folder.read("out.unimem-part");
  std::mt19937 random{3};
  for (int i = 0; i < 20; ++i) {
    auto flipped = journal;
    auto const bit = random() % (journal.size() * 8);
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    folder.write("out.unimem-journal", std::string_view(flipped));
    folder.write("out.unimem-part", std::string_view(part));
    if (auto const said = complaint(); said.empty()) {
      expect_whole_output();
    } else {
      EXPECT_THAT(said, HasSubstr("no journal of a stream"));
    }
    std::filesystem::remove(folder / "out");
  }
}

TEST_P(ResumedStream, PutsInPlaceWhatWasWholeAlready) {
  interrupt_after(size);
  auto const result = run(options);
  EXPECT_EQ(result.resumed_bytes, size);
  EXPECT_EQ(result.chunks, 0U);
  expect_whole_output();
}

TEST_P(ResumedStream, GoesOnWithChecksumsAndAManifest) {
  options.checksum = Checksum::crc32c;
  auto plain = options;
  plain.resume = false;
  auto const expected = run(plain).files.at(0).checksums;
  std::filesystem::remove(folder / "out");
  for (auto const done : {5 * chunk, size}) {
    interrupt_after(done);
    options.manifest = folder / "m.json";
    auto const result = run(options);
    EXPECT_GE(result.resumed_bytes, std::min(done, 9 * chunk));
    EXPECT_EQ(result.files.at(0).checksums, expected);
    EXPECT_EQ(result.files.at(0).bytes, size);
    auto verified = plain;
    verified.verify = folder / "m.json";
    EXPECT_EQ(run(verified).files.at(0).checksums, expected);
    std::filesystem::remove(folder / "m.json");
    expect_whole_output();
    options.manifest.clear();
    std::filesystem::remove(folder / "out");
  }
}

TEST_P(ResumedStream, GoesOnWhereAnotherSizeOfChunksIsVerified) {
  auto plain = options;
  plain.resume = false;
  plain.manifest = folder / "m.json";
  plain.chunk_bytes = 3 * chunk;
  static_cast<void>(run(plain));
  std::filesystem::remove(folder / "out");
  options.verify = folder / "m.json";
  options.buffers = 1;  // so that no second chunk is through behind the one that is told
  interrupt_after(4 * chunk);
  EXPECT_EQ(run(options).resumed_bytes % (3 * chunk), 0U);
  std::filesystem::remove(folder / "m.json");
  expect_whole_output();
}

TEST_P(ResumedStream, DamagedInputIsToldWhicheverRunHasReadItAndIsNotGoneOnFrom) {
  auto plain = options;
  plain.resume = false;
  plain.manifest = folder / "m.json";
  static_cast<void>(run(plain));
  std::filesystem::remove(folder / "out");
  bytes[5] ^= 1U;
  bytes[8 * chunk] ^= 1U;
  folder.write("in", bytes);
  options.verify = folder / "m.json";
  for (std::uint64_t const interrupted_at : {std::uint64_t{0}, std::uint64_t{4 * chunk}, std::uint64_t{size}}) {
    interrupt_after(interrupted_at);
    try {
      static_cast<void>(run(options));
      ADD_FAILURE() << "an output was made of damaged input, interrupted at " << interrupted_at;
    } catch (ChecksumMismatch const& error) {
      ASSERT_EQ(error.chunks.size(), 2U);
      EXPECT_EQ(error.chunks[0].index, 0U);
      EXPECT_EQ(error.chunks[0].bytes, chunk);
      EXPECT_EQ(error.chunks[1].index, 8U);
    }
    EXPECT_EQ(folder.names(), (std::set<std::string>{"in", "m.json"}));
  }
  // What was damaged on its way only is read again.
  bytes[5] ^= 1U;
  bytes[8 * chunk] ^= 1U;
  folder.write("in", bytes);
  EXPECT_EQ(run(options).resumed_bytes, 0U);
}

TEST_P(ResumedStream, ANameThatIsNoUtf8IsKnownAgain) {
  std::filesystem::rename(path, folder / "in\xff");
  path = folder / "in\xff";
  interrupt_after(4 * chunk);
  EXPECT_GE(run(options).resumed_bytes, 4 * chunk);
}

TEST_P(ResumedStream, WhatIsLeftOfItIsToldByARunThatDoesNotGoOn) {
  static std::vector<std::string> warnings;
  warnings.clear();
  interrupt_after(4 * chunk);
  auto plain = options;
  plain.resume = false;
  set_log_sink([](LogLevel level, std::string_view message) noexcept {
    if (level == LogLevel::warning) warnings.emplace_back(message);
    return true;
  });
  static_cast<void>(run(plain));
  set_log_sink(nullptr);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings.front(), HasSubstr("out.unimem-journal' and the unfinished output beside it"));
  EXPECT_GE(run(options).resumed_bytes, 4 * chunk) << "and stays";
  expect_whole_output();
}

TEST_P(ResumedStream, RefusesTheJournalOfAnotherRunAndLeavesIt) {
  interrupt_after(4 * chunk);
  auto const journal = folder.read("out.unimem-journal"), part = folder.read("out.unimem-part");
  auto const first = options;
  auto const first_kernel = kernel;
  kernel = affine(ElementType::u8, 1, 2);
  EXPECT_THAT(complaint(), HasSubstr("its kernel is 'affine, 1 and 1', not 'affine, 1 and 2'"));
  kernel = affine(ElementType::i8, 1, 1);
  EXPECT_THAT(complaint(), HasSubstr("its element is 'u8', not 'i8'"));
  kernel =
      mapping(Kernel("own").group({8, 2}).host([](WorkItem i, std::span<const std::uint8_t> in,
                                                  std::span<std::uint8_t> out, std::uint64_t) { out[i.x] = in[i.x]; }),
              ElementType::u8);
  EXPECT_THAT(complaint(), HasSubstr("not 'own in groups of (8, 2, 1), source "));
  kernel = first_kernel;
  options.chunk_bytes = 2 * chunk;
  EXPECT_THAT(complaint(), HasSubstr("its chunk size is '65536', not '131072'"));
  options = first;
  options.checksum = Checksum::xxh3;
  EXPECT_THAT(complaint(), HasSubstr("its checksum is 'none'"));
  options = first;
  EXPECT_EQ(folder.read("out.unimem-journal"), journal);
  EXPECT_EQ(folder.read("out.unimem-part"), part);
  EXPECT_GE(run(options).resumed_bytes, 4 * chunk);
  expect_whole_output();
}

TEST_P(ResumedStream, RefusesAnInputThatWasChangedAndMadeToLookOld) {
  interrupt_after(4 * chunk);
  auto const time = std::filesystem::last_write_time(path);
  bytes[5] ^= 1U;
  folder.write("in", bytes);
  std::filesystem::last_write_time(path, time);
  EXPECT_THAT(complaint(), HasSubstr("the input has changed since"));
}

TEST_P(ResumedStream, NeverWritesToItsOwnInput) {
  std::filesystem::rename(path, folder / "out.unimem-part");
  path = folder / "out.unimem-part";
  EXPECT_THROW(static_cast<void>(run(options)), InvalidArgument);
  EXPECT_EQ(folder.read_elements<std::uint8_t>("out.unimem-part"), bytes);
  std::filesystem::rename(path, folder / "out.unimem-journal");
  path = folder / "out.unimem-journal";
  EXPECT_THROW(static_cast<void>(run(options)), InvalidArgument);
  EXPECT_EQ(folder.read_elements<std::uint8_t>("out.unimem-journal"), bytes);
}

TEST_P(ResumedStream, NeverWritesToItsInputByALink) {
  std::filesystem::create_directory(folder / "far");
  std::filesystem::create_symlink("far/real", folder / "out");
  for (auto const* const beside : {"far/real.unimem-part", "far/real.unimem-journal"}) {
    path = folder.write(beside, bytes);
    EXPECT_THAT(complaint(), HasSubstr("another file than the input"));
    EXPECT_EQ(folder.read_elements<std::uint8_t>(beside), bytes);
    std::filesystem::remove(path);
  }
}

TEST_P(ResumedStream, WritesNoManifestWhereALinkedOutputIs) {
  std::filesystem::create_directory(folder / "far");
  std::filesystem::create_symlink("far/real", folder / "out");
  for (auto const* const beside : {"far/real", "far/real.unimem-part", "far/real.unimem-journal"}) {
    options.manifest = folder / beside;
    EXPECT_THAT(complaint(), HasSubstr("another file than the output"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "far"));
}

TEST_P(ResumedStream, RefusesAFileThatIsNoJournal) {
  folder.write("out.unimem-journal", std::string_view("my notes\nof the day\n"));
  EXPECT_THAT(complaint(), HasSubstr("no journal of a stream"));
  EXPECT_EQ(folder.read("out.unimem-journal"), "my notes\nof the day\n");
}

TEST_P(ResumedStream, TwoRunsExcludeEachOther) {
  interrupt_after(2 * chunk);
  detail::UniqueFd const other(::open((folder / "out.unimem-journal").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  auto const part = folder.read("out.unimem-part");
  EXPECT_THAT(complaint(), HasSubstr("another run goes on with this output"));
  EXPECT_EQ(folder.read("out.unimem-part"), part);
}

TEST_P(ResumedStream, WritesTheHeaderOfANpyOnce) {
  std::array const shape{std::uint64_t{bytes.size() / 4}, std::uint64_t{4}};
  auto const header = detail::format_npy_header(ElementType::u8, shape);
  path = folder.write("in.npy", header + std::string(bytes.begin(), bytes.end()));
  kernel = affine(ElementType::u8, 1, 0);
  options.output = folder / "out.npy";
  auto interrupted = options;
  interrupted.progress = [](std::uint64_t done, std::uint64_t) {
    if (done >= 3 * chunk) throw 1;
  };
  EXPECT_THROW(static_cast<void>(run(interrupted)), int);
  EXPECT_GE(run(options).resumed_bytes, 3 * chunk);
  EXPECT_EQ(folder.read("out.npy"), folder.read("in.npy"));
}

TEST_P(ResumedStream, NeedsAnOutputAndOneFile) {
  auto without = options;
  without.output.clear();
  EXPECT_THROW(static_cast<void>(run(without)), InvalidArgument);
  std::array const twice{path, path};
  EXPECT_THROW(stream_files(twice, kernel, options), InvalidArgument);
  options.output = "/dev/null";
  EXPECT_THROW(static_cast<void>(run(options)), InvalidArgument);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"in"}));
}

INSTANTIATE_TEST_SUITE_P(Devices, ResumedStream, ::testing::Values("cpu", "sim"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace unimem
