#include <unimem/core/error.hpp>

#include "stream/file_buffer_fixture.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Buffers that are made from files: what of the file is read, when, and what becomes of it.

namespace unimem::testing {
namespace {

TEST_F(FileBuffers, ReadNothingBeforeItIsLookedAt) {
  auto const path = folder.write("words", numbers());
  auto const before = system_count_of("rchar");
  auto const buffer = from_file<Word>(path, options());
  EXPECT_EQ(buffer.size(), file_words);
  EXPECT_EQ(buffer.name(), "words");
  EXPECT_EQ(buffer.state(), BufferState::host_only);
  EXPECT_TRUE(buffer.valid_on_host());
  EXPECT_EQ(bytes_read(), 0U);
  EXPECT_LT(system_count_of("rchar") - before, 64 * KiB) << "the counts themselves";
  EXPECT_EQ(host_bytes(), 0U);
}

TEST_F(FileBuffers, ReadOnlyTheRangesLookedAt) {
  auto buffer = from_file<Word>(folder.write("words", numbers()), options());
  auto const before = system_count_of("rchar");
  for (auto const first : {std::size_t{5}, file_words / 2 + 1, file_words - 1'000}) {
    auto part = buffer.slice(first, 1'000);
    auto const mapped = part.map(MapMode::read);
    for (std::size_t i = 0; i < mapped.size(); ++i) ASSERT_EQ(mapped[i], first + i);
  }
  EXPECT_EQ(bytes_read(), 3'000 * sizeof(Word));
  EXPECT_LT(system_count_of("rchar") - before, 3'000 * sizeof(Word) + 64 * KiB);
  EXPECT_EQ(buffer.slice(6, 10).to_vector().front(), 6U);
  EXPECT_EQ(bytes_read(), 3'000 * sizeof(Word)) << "they are there";
  EXPECT_LE(host_bytes(), 3 * 64 * KiB);
}

TEST_F(FileBuffers, GoStraightToADevice) {
  auto buffer = from_file<Word>(folder.write("words", numbers()), options());
  auto part = buffer.slice(1'000, file_words / 2);
  {
    auto const there = part.device_view(sim);
    auto const seen = std::span{there.data(), there.size()};
    for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], 1'000 + i);
  }
  EXPECT_EQ(bytes_read(), file_bytes / 2) << "once";
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, file_bytes / 2);
  EXPECT_EQ(host_bytes(), 0U) << "by way of pinned blocks, and of no copy on the host";
}

TEST_F(FileBuffers, GoToADeviceAndBackThroughLittleMemory) {
  auto words = numbers();
  auto const path = folder.write("words", words);
  manager.set_limit(device("cpu"), 256 * KiB);
  {
    auto buffer = from_file<Word>(path, options(FileMode::read_write));
    auto const there = buffer.device(sim);
    ASSERT_EQ(std::memcmp(there.data(), words.data(), file_bytes), 0);
    for (std::size_t i = 0; i < file_words; i += 1'000) there.data()[i] = words[i] = 1U;
  }
  for (int i = 0; i < 1'000 && words_of(path) != words; ++i) std::this_thread::sleep_for(std::chrono::milliseconds{5});
  EXPECT_EQ(words_of(path), words) << "what the device had newer";
}

TEST_F(FileBuffers, CleanPartsCostNothingToEvict) {
  auto const words = numbers();
  auto buffer = from_file<Word>(folder.write("words", words), options());
  auto const written = system_count_of("wchar");
  EXPECT_EQ(sum_of(buffer), sum_of(words));
  EXPECT_EQ(bytes_read(), file_bytes) << "each byte once";
  EXPECT_LE(manager.statistics().reserved_bytes, file_bytes / 2);
  for (int pass = 1; pass < 5; ++pass) EXPECT_EQ(sum_of(buffer), sum_of(words));
  // What would be best keeps half of the file, and reads the other half each time.
  EXPECT_LE(static_cast<double>(bytes_read()), 1.15 * 3 * file_bytes);
  EXPECT_EQ(bytes_written(), 0U);
  EXPECT_LT(system_count_of("wchar") - written, 64 * KiB);
  EXPECT_EQ(manager.statistics().failed_host_reclaims, 0U);
  buffer.core().validate();
}

TEST_F(FileBuffers, BeyondTheLimitIsNoWholeView) {
  auto const words = numbers();
  auto buffer = from_file<Word>(folder.write("words", words), options());
  try {
    static_cast<void>(std::as_const(buffer).host_view());
    FAIL() << "there is no memory for all of it";
  } catch (OutOfMemory const& refused) {
    EXPECT_GE(refused.facts().requested, file_bytes);
    EXPECT_EQ(refused.facts().limit, file_bytes / 2);
  }
  EXPECT_EQ(bytes_read(), 0U);
  EXPECT_EQ(buffer.to_vector(), words) << "to memory of the caller's it comes all the same";
}

TEST_F(FileBuffers, LeasedPartsStay) {
  auto buffer = from_file<Word>(folder.write("words", numbers()), options());
  auto kept = buffer.slice(step, step);
  auto const mapped = kept.map(MapMode::read);
  auto away = buffer.slice(5 * step, step);
  auto const given = std::as_const(away).host_view();
  EXPECT_EQ(sum_of(buffer), sum_of(numbers()));
  EXPECT_EQ(sum_of(buffer), sum_of(numbers()));
  auto const read = bytes_read();
  for (std::size_t i = 0; i < step; ++i) {
    ASSERT_EQ(mapped[i], step + i);
    ASSERT_EQ(given[i], 5 * step + i);
  }
  EXPECT_EQ(std::as_const(buffer).at(step), step);
  EXPECT_EQ(bytes_read(), read);
}

TEST_F(FileBuffers, LeasesOnMoreThanTheLimitAreRefused) {
  auto buffer = from_file<Word>(folder.write("words", numbers()), options());
  auto first = buffer.slice(0, file_words / 2);
  auto second = buffer.slice(file_words / 2, step);
  auto mapped = std::optional(first.map(MapMode::read));
  try {
    static_cast<void>(second.map(MapMode::read));
    FAIL() << "all memory is leased";
  } catch (OutOfMemory const& refused) {
    EXPECT_EQ(refused.facts().leased, file_bytes / 2);
  }
  mapped.reset();
  EXPECT_EQ(second.map(MapMode::read)[0], file_words / 2);
}

TEST_F(FileBuffers, ToBeReadRefuseEveryWrite) {
  auto const words = numbers(1'000);
  auto const path = folder.write("words", words);
  auto buffer = from_file<Word>(path, options());
  UnifiedBuffer<Word> other(words.size());
  other.copy_from(words);
  EXPECT_THROW(static_cast<void>(buffer.host()), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(buffer.map(MapMode::write)), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(buffer.map(MapMode::discard)), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(buffer.device(sim)), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(buffer.device(device("cpu"))), UnsupportedOperation);
  EXPECT_THROW(buffer.fill(7U), UnsupportedOperation);
  EXPECT_THROW(buffer.copy_from(words), UnsupportedOperation);
  EXPECT_THROW(copy(other, buffer), UnsupportedOperation);
  EXPECT_THROW(buffer.mark_host_dirty(), UnsupportedOperation);
  EXPECT_THROW(buffer.mark_device_dirty(sim), UnsupportedOperation);
  EXPECT_THROW(buffer.resize(10), UnsupportedOperation);
  try {
    set(buffer, 3, 1U);
    FAIL() << "it is read only";
  } catch (UnsupportedOperation const& refused) {
    EXPECT_NE(std::string(refused.what()).find(path.string()), std::string::npos) << refused.what();
  }
  buffer.flush();
  EXPECT_EQ(buffer.to_vector(), words);
  EXPECT_EQ(words_of(folder / "words"), words);
}

TEST_F(FileBuffers, CopyOnWriteLeavesTheFile) {
  auto words = numbers();
  auto const path = folder.write("words", words);
  MemoryManager spilling{ManagerOptions{.spill = {.directory = (folder / ".").string()}}};
  spilling.set_limit(device("cpu"), file_bytes / 2);
  auto made = options(FileMode::copy_on_write);
  made.manager = &spilling;
  auto buffer = from_file<Word>(path, made);
  for (std::size_t i = 0; i < file_words; i += 3 * step / 2) {
    set(buffer, i, 1'000'000'000U);
    words[i] = 1'000'000'000U;
  }
  auto whole_part = buffer.slice(2 * step, step);
  whole_part.fill(5U);
  std::fill_n(words.begin() + 2 * step, step, 5U);
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(sum_of(buffer), sum_of(words));
  EXPECT_EQ(buffer.to_vector(), words);
  EXPECT_GT(spilling.statistics().spilled_bytes, 0U);
  EXPECT_LE(spilling.statistics().reserved_bytes, file_bytes / 2);
  buffer.flush();
  EXPECT_EQ(spilling.statistics().file_written_bytes, 0U);
  EXPECT_EQ(words_of(folder / "words"), numbers());
  buffer.discard();
  EXPECT_EQ(buffer.to_vector(), numbers()) << "the file's again";
}

TEST_F(FileBuffers, ChangedPartsStayWithoutAFolderToSpillTo) {
  auto buffer = from_file<Word>(folder.write("words", numbers()), options(FileMode::copy_on_write));
  std::size_t changed = 0;
  try {
    for (; changed < file_words; changed += step) set(buffer, changed, 7U);
    FAIL() << "they have nowhere to go";
  } catch (OutOfMemory const&) {
    EXPECT_EQ(changed * sizeof(Word), file_bytes / 2);
  }
  auto expected = numbers();
  for (std::size_t i = 0; i < changed; i += step) expected[i] = 7U;
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(FileBuffers, ReadWriteGoesToTheFile) {
  auto words = numbers();
  auto const path = folder.write("words", words);
  {
    auto buffer = from_file<Word>(path, options(FileMode::read_write));
    for (std::size_t i = 0; i < file_words; i += step) {
      auto part = buffer.slice(i, 100);
      for (auto& word : part.map(MapMode::write)) word += 1;
      std::for_each_n(words.begin() + static_cast<std::ptrdiff_t>(i), 100, [](Word& word) { ++word; });
    }
    {
      auto part = buffer.slice(10, 20);
      auto const there = part.device(sim);
      std::fill_n(there.data(), 20, 9U);
    }
    std::fill_n(words.begin() + 10, 20, 9U);
    buffer.flush();
    EXPECT_EQ(words_of(folder / "words"), words);
    auto const written = bytes_written();
    buffer.flush();
    EXPECT_EQ(bytes_written(), written) << "nothing is newer";
    set(buffer, file_words - 1, 1U);
    buffer.flush();
    EXPECT_EQ(bytes_written(), written + sizeof(Word));
    words.back() = 1U;
    EXPECT_EQ(buffer.to_vector(), words);
  }
  EXPECT_EQ(words_of(folder / "words"), words);
  EXPECT_EQ(std::filesystem::file_size(path), file_bytes);
}

TEST_F(FileBuffers, WriteNoBytesThatWereNotWrittenThroughThem) {
  auto const path = folder.write("words", numbers());
  auto buffer = from_file<Word>(path, options(FileMode::read_write));
  static_cast<void>(buffer.slice(0, 40'000).map(MapMode::read));  // the host has what lies between
  constexpr std::array<std::size_t, 4> written{0, 1, 10'000, 30'000};
  for (auto const at : written) set(buffer, at, 7U);
  {
    std::fstream beside(path, std::ios::in | std::ios::out | std::ios::binary);
    beside.seekp(20'000);
    beside.write("XXXX", 4);
  }
  auto const before = bytes_written();
  buffer.flush();
  EXPECT_EQ(bytes_written() - before, written.size() * sizeof(Word));
  auto const words = words_of(path);
  for (auto const at : written) EXPECT_EQ(words[at], 7U) << at;
  EXPECT_EQ(words[5'000], 0x58585858U) << "another program's";
}

TEST_F(FileBuffers, ChangedPartsGoToTheFileForWantOfMemory) {
  auto words = numbers();
  auto const path = folder.write("words", words);
  auto buffer = from_file<Word>(path, options(FileMode::read_write));
  for (std::size_t i = 0; i < file_words; i += step) set(buffer, i, words[i] = 1U);
  EXPECT_EQ(bytes_written(), file_bytes / 2 / (64 * KiB) * sizeof(Word)) << "one word of each part that had to go";
  EXPECT_LE(manager.statistics().reserved_bytes, file_bytes / 2);
  EXPECT_EQ(buffer.to_vector(), words);
  EXPECT_EQ(sum_of(buffer), sum_of(words));
}

TEST_F(FileBuffers, TheEndOfTheProcessWaitsForTheFile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The child begins this test again, and is told the path.
  if (std::getenv("UNIMEM_FILE_AT_THE_END") == nullptr)
    ::setenv("UNIMEM_FILE_AT_THE_END", (folder / "words").c_str(), 1);
  std::filesystem::path const path = std::getenv("UNIMEM_FILE_AT_THE_END");
  EXPECT_EXIT(
      {
        std::ofstream(path, std::ios::binary) << std::string(file_bytes, 'a');
        {
          auto buffer = from_file<char>(path, {.mode = FileMode::read_write});
          buffer.fill('b');
        }
        std::exit(3);
      },
      ::testing::ExitedWithCode(3), "");
  std::ifstream file(path, std::ios::binary);
  std::string const contents{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(contents == std::string(file_bytes, 'b'));
  ::unsetenv("UNIMEM_FILE_AT_THE_END");
}

TEST_F(FileBuffers, AFileThatShrinksGetsNoHole) {
  auto words = numbers();
  auto const path = folder.write("words", words);
  {
    auto buffer = from_file<Word>(path, options(FileMode::read_write));
    set(buffer, file_words - 1, words.back() = 1U);
    std::filesystem::resize_file(path, file_bytes / 4);
    for (int again = 0; again < 2; ++again) {
      try {
        buffer.flush();
        ADD_FAILURE() << "written behind the end";
      } catch (IoError const& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("it has become shorter, and ends at "));
      }
    }
    EXPECT_EQ(buffer.at(file_words - 1), 1U);
    EXPECT_EQ(std::filesystem::file_size(path), file_bytes / 4);
    folder.write("words", numbers());  // the same file, as long as it was
    buffer.flush();
  }
  EXPECT_EQ(words_of(path), words);
}

TEST_F(FileBuffers, AFileThatShrinksIsAnError) {
  auto const path = folder.write("words", numbers());
  auto const buffer = from_file<Word>(path, options());
  EXPECT_EQ(buffer.at(5), 5U);
  std::filesystem::resize_file(path, file_bytes / 4);
  for (int again = 0; again < 2; ++again) {
    try {
      static_cast<void>(buffer.at(file_words / 2));
      FAIL() << "there is no such word any more";
    } catch (IoError const& error) {
      auto const begin = std::to_string(file_bytes / 2);
      EXPECT_NE(std::string(error.what()).find(begin), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(buffer.at(5), 5U);
  EXPECT_EQ(buffer.at(step + 5), step + 5) << "what the file still has";
  EXPECT_THROW(static_cast<void>(buffer.to_vector()), IoError);
  auto const part = buffer.slice(file_words / 2, 100);
  EXPECT_THROW(static_cast<void>(part.device_view(sim)), IoError);
}

TEST_F(FileBuffers, BeginWhereTheyAreTold) {
  auto const path = folder.write("words", numbers());
  auto made = options();
  made.offset = 6;  // no multiple of a word's size, let alone of a page's
  made.count = 1'000;
  auto const buffer = from_file<std::uint16_t>(path, made);
  EXPECT_EQ(buffer.size(), 1'000U);
  EXPECT_EQ(buffer.at(1), 2U);
  EXPECT_EQ(buffer.at(2), 0U);
  made.offset = file_bytes;
  made.count.reset();
  EXPECT_EQ(from_file<Word>(path, made).size(), 0U);
  EXPECT_TRUE(from_file<Word>(path, made).to_vector().empty());
}

TEST_F(FileBuffers, BeginAbove4GiB) {
  auto const path = folder / "sparse";
  constexpr std::uint64_t far = 5 * GiB + 12;
  {
    std::ofstream file(path, std::ios::binary);
    file.seekp(static_cast<std::streamoff>(far));
    auto const words = numbers(1'000);
    file.write(reinterpret_cast<char const*>(words.data()), 4'000);
  }
  auto made = options(FileMode::read_write);
  made.offset = far;
  auto const near = from_file<Word>(path, made);
  EXPECT_EQ(near.to_vector(), numbers(1'000));
  made.offset = 0;
  auto all = from_file<Word>(path, made);
  EXPECT_EQ(all.size(), (far + 4'000) / sizeof(Word));
  EXPECT_EQ(std::as_const(all).at(far / sizeof(Word) + 999), 999U);
  set(all, far / sizeof(Word) + 999, 1U);
  all.flush();
  auto const again = from_file<Word>(path, made);
  EXPECT_EQ(again.at(far / sizeof(Word) + 999), 1U);
  EXPECT_LT(bytes_read(), 64 * KiB);
}

/// Of the mapping that has an address, as the system counts it: what a line of it says, in bytes.
std::size_t counted(void const* in_mapping, std::string const& what) {
  auto const address = reinterpret_cast<std::uintptr_t>(in_mapping);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = begin <= address && address < end;
    if (inside && line.starts_with(what + ':')) return std::stoul(line.substr(what.size() + 1)) * KiB;
  }
  return 0;
}

TEST_F(FileBuffers, TakeHugePagesWhereAllOfThemIsLookedAtAlone) {
  std::string chosen;
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
  std::getline(setting, chosen);
  if (chosen.find("[never]") != std::string::npos || chosen.empty()) GTEST_SKIP() << "the system gives no huge pages";
  auto const path = folder / "wide";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, 32 * MiB);
  auto const sparse = from_file<Word>(path, options());
  for (std::size_t at = 0; at < sparse.size(); at += MiB / sizeof(Word)) EXPECT_EQ(sparse.at(at), 0U);
  auto const first = sparse.slice(0, 1);
  auto const* const there = first.host_view().data();
  EXPECT_LE(counted(there, "Rss"), 32 * 64 * KiB);
  EXPECT_EQ(counted(there, "AnonHugePages"), 0U);
  // Cells that have gone and come again one by one.
  auto walked = from_file<Word>(path, options());
  for (std::size_t at = 0; at < walked.size(); at += 4 * MiB / sizeof(Word)) {
    auto part = walked.slice(at, 4 * MiB / sizeof(Word));
    EXPECT_EQ(part.map(MapMode::read)[0], 0U);
  }
  auto const again = std::as_const(walked).slice(0, 1);
  auto const* const touched = again.host_view().data();
  EXPECT_EQ(counted(touched, "AnonHugePages"), 0U) << "one cell is no huge page";
  manager.set_limit(device("cpu"), 64 * MiB);
  auto const dense = from_file<Word>(path, options());
  auto const* const filled = dense.host_view().data() + 4 * MiB / sizeof(Word);
  EXPECT_GE(counted(filled, "AnonHugePages"), 4 * MiB);
}

TEST_F(FileBuffers, RefuseFilesWhoseSizeIsNotKnown) {
  try {
    static_cast<void>(from_file<std::byte>("/proc/self/maps", options()));
    FAIL() << "a file of no bytes, which it has";
  } catch (IoError const& error) {
    EXPECT_NE(std::string(error.what()).find("its size is not known"), std::string::npos) << error.what();
  }
}

TEST_F(FileBuffers, RefuseWhatIsNoSuchFile) {
  EXPECT_THROW(static_cast<void>(from_file<Word>(folder / "missing", options())), IoError);
  EXPECT_THROW(static_cast<void>(from_file<Word>(folder / ".", options())), IoError);
  EXPECT_THROW(static_cast<void>(from_file<Word>("/dev/zero", options())), IoError);
  auto const odd = folder.write("odd", std::string_view("12345"));
  EXPECT_THROW(static_cast<void>(from_file<Word>(odd, options())), IoError);
  auto made = options();
  made.count = 1;
  EXPECT_EQ(from_file<Word>(odd, made).size(), 1U);
  made.count = 2;
  EXPECT_THROW(static_cast<void>(from_file<Word>(odd, made)), InvalidArgument);
  made.count = std::size_t{1} << 62;
  EXPECT_THROW(static_cast<void>(from_file<Word>(odd, made)), InvalidArgument);
  made.count.reset();
  made.offset = 6;
  EXPECT_THROW(static_cast<void>(from_file<Word>(odd, made)), InvalidArgument);
  UnifiedBuffer<Word> plain(10);
  EXPECT_THROW(plain.flush(), UnsupportedOperation);
}

TEST_F(FileBuffers, WorkOfTheCpuIsDoneWhereTheBytesLie) {
  auto const words = numbers();
  auto buffer = from_file<Word>(folder.write("words", words), options(FileMode::read_write));
  auto& cpu = device("cpu");
  for (std::size_t begin = 0; begin < file_words; begin += step) {
    auto part = buffer.slice(begin, step);
    auto const there = part.device(cpu);
    for (std::size_t i = 0; i < step; ++i) ++there.data()[i];
  }
  auto expected = words;
  for (auto& word : expected) ++word;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_LE(manager.statistics().reserved_bytes, file_bytes / 2);
  buffer.flush();
  EXPECT_EQ(words_of(folder / "words"), expected);
}

TEST_F(FileBuffers, MoreThreadsThanMemory) {
  auto const words = numbers();
  auto buffer = from_file<Word>(folder.write("words", words), options());
  manager.set_limit(device("cpu"), 2 * MiB);
  std::vector<std::uint64_t> sums(8);
  {
    std::vector<std::jthread> threads;
    for (auto& sum : sums) threads.emplace_back([&] { sum = sum_of(buffer); });
  }
  for (auto const sum : sums) EXPECT_EQ(sum, sum_of(words));
  EXPECT_LE(manager.statistics().reserved_bytes, 2 * MiB);
}

}  // namespace
}  // namespace unimem::testing
