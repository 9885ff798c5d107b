#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/stream/tensors.hpp>

#include "core/sanitizers.hpp"
#include "random_cases.hpp"
#include "stream/file_buffer_fixture.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

// Buffers over files whose host memory is the file's own pages (FileAccess::mapped): nothing is copied for the host and
// for devices that work in its memory, no memory is taken, and what the file turns out not to have is told.

namespace unimem::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class MappedBuffers : public FileBuffers {
 protected:
  [[nodiscard]] FileOptions mapped(FileMode mode = FileMode::read) {
    auto made = options(mode);
    made.access = FileAccess::mapped;
    return made;
  }
  [[nodiscard]] std::size_t bytes_mapped() const { return manager.statistics().file_mapped_bytes; }

  /// Memory of the process that is no file's.
  [[nodiscard]] static std::size_t anonymous_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * KiB;
    }
    ADD_FAILURE() << "the system does not say how much";
    return 0;
  }

  /// Whether the call is an IoError about that file which names what of it was wanted.
  static void expect_missing(std::filesystem::path const& path, std::uint64_t begin, std::uint64_t end,
                             std::function<void()> const& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (IoError const& error) {
      EXPECT_EQ(error.path, path);
      EXPECT_THAT(error.what(), HasSubstr("[" + std::to_string(begin) + ", " + std::to_string(end) + ")"));
    }
  }
};

TEST_F(MappedBuffers, TheHostLooksAtTheFileItself) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  auto buffer = from_file<Word>(path, mapped());
  EXPECT_EQ(bytes_mapped(), 0U) << "nobody has looked";
  auto const before = system_count_of("rchar");
  auto const memory = anonymous_bytes();
  auto const view = buffer.host_view();
  EXPECT_EQ(bytes_mapped(), file_bytes);
  EXPECT_TRUE(std::ranges::equal(view, words));
  if (!detail::under_thread_sanitizer) {  // which keeps memory of its own beside
    EXPECT_LT(anonymous_bytes(), memory + 2 * MiB);
  }
  EXPECT_EQ(buffer.slice(1'000, 1'000).map(MapMode::read)[7], 1'007U);
  EXPECT_LT(system_count_of("rchar") - before, 64 * KiB) << "the counts themselves are read";
  auto const statistics = manager.statistics();
  EXPECT_EQ(statistics.file_reads, 0U);
  EXPECT_EQ(statistics.file_read_bytes, 0U);
  EXPECT_EQ(statistics.reserved_bytes, 0U) << "no pool has given anything";
  EXPECT_EQ(buffer.to_vector(), words);
  buffer.core().validate();

  buffer.release_host();
  EXPECT_EQ(bytes_mapped(), 0U);
  EXPECT_EQ(buffer.to_vector(), words);
  buffer.free();
  EXPECT_EQ(bytes_mapped(), 0U);
  EXPECT_EQ(std::as_const(buffer).at(file_words - 1), words.back());
}

TEST_F(MappedBuffers, WhatOthersWriteIsSeen) {
  auto const path = folder.write("words", numbers());
  auto buffer = from_file<Word>(path, mapped());
  auto const view = buffer.host_view();
  EXPECT_EQ(view[5], 5U);
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    Word const other = 77;
    file.seekp(5 * sizeof(Word));
    file.write(reinterpret_cast<char const*>(&other), sizeof other);
  }
  EXPECT_EQ(view[5], 77U) << "the page itself";
}

TEST_F(MappedBuffers, TheProcessorWorksWhereTheBytesLie) {
  auto const words = numbers();
  auto buffer = from_file<Word>(folder.write("words", words), mapped());
  auto& cpu = device("cpu");
  auto const there = buffer.device_view(cpu);
  EXPECT_EQ(static_cast<void const*>(there.data()), static_cast<void const*>(buffer.host_view().data()));

  UnifiedBuffer<Word> sums(file_words / 1'024, {.manager = &manager, .device = &cpu});
  auto const add = Kernel("sum_of_1024").host([](WorkItem i, std::span<Word const> in, std::span<Word> out) {
    auto const part = in.subspan(i.x * 1'024, 1'024);
    out[i.x] = std::accumulate(part.begin(), part.end(), Word{0});
  });
  launch(cpu.default_queue(), add, Range{sums.size()}, read(buffer), write(sums));
  auto const found = sums.to_vector();
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const begin = words.begin() + static_cast<std::ptrdiff_t>(i * 1'024);
    ASSERT_EQ(found[i], std::accumulate(begin, begin + 1'024, Word{0}));
  }
  EXPECT_EQ(bytes_read(), 0U);
  EXPECT_EQ(bytes_mapped(), file_bytes);
  buffer.core().validate();
}

TEST_F(MappedBuffers, ADeviceWithMemoryOfItsOwnReadsEachByteOnce) {
  auto const words = numbers();
  auto buffer = from_file<Word>(folder.write("words", words), mapped());
  for (bool const looks_first : {false, true}) {
    SCOPED_TRACE(looks_first);
    auto const before = bytes_read();
    if (looks_first) {
      EXPECT_EQ(buffer.host_view()[1], 1U);
    }
    {
      auto const there = buffer.device_view(sim);
      EXPECT_TRUE(std::ranges::equal(std::span{there.data(), there.size()}, words));
    }
    EXPECT_EQ(bytes_read() - before, file_bytes);
    EXPECT_EQ(buffer.device_view(sim).data()[9], 9U);
    EXPECT_EQ(bytes_read() - before, file_bytes) << "it is there";
    buffer.core().validate();
    buffer.release_device();
  }
  EXPECT_TRUE(std::ranges::equal(buffer.host_view(), words));
}

TEST_F(MappedBuffers, NoLimitOfTheHostsIsInTheWay) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  manager.set_limit(device("cpu"), 64 * KiB);
  {
    auto buffer = from_file<Word>(path, mapped());
    EXPECT_TRUE(std::ranges::equal(buffer.host_view(), words));
    auto const on_cpu = buffer.device_view(device("cpu"));
    EXPECT_EQ(on_cpu.data()[file_words - 1], file_words - 1);
    EXPECT_EQ(bytes_mapped(), file_bytes);
    EXPECT_LE(manager.statistics().reserved_bytes, 64 * KiB);
    // It has nothing to give, and is not asked for it.
    UnifiedBuffer<std::byte> all(48 * KiB, {.manager = &manager, .device = &device("cpu")});
    all.host()[0] = std::byte{1};
    UnifiedBuffer<std::byte> more(48 * KiB, {.manager = &manager, .device = &device("cpu")});
    try {
      static_cast<void>(more.host());
      ADD_FAILURE() << "no error";
    } catch (OutOfMemory const& refused) {
      EXPECT_LE(refused.facts().leased, 64 * KiB) << "what is mapped is no memory of the pool's";
    }
    EXPECT_EQ(manager.statistics().host_reclaims, 0U);
    EXPECT_TRUE(std::ranges::equal(buffer.host_view(), words));

    // On its way to a device with memory of its own the file passes through blocks of the host's, as always.
    manager.set_limit(device("cpu"), 256 * KiB);
    auto part = buffer.slice(777, file_words / 4);
    auto const on_sim = part.device_view(sim);
    EXPECT_TRUE(
        std::ranges::equal(std::span{on_sim.data(), on_sim.size()}, std::span{words}.subspan(777, file_words / 4)));
  }
  EXPECT_EQ(bytes_mapped(), 0U);
}

TEST_F(MappedBuffers, TheFileMayBeShorterByNow) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  auto buffer = from_file<Word>(path, mapped());
  auto const view = buffer.host_view();
  auto const bytes = std::as_bytes(std::span{view});
  std::filesystem::resize_file(path, file_bytes / 2);
  // What an address shows that was given away.
  EXPECT_THAT(bytes.subspan(file_bytes / 2, 64 * KiB), Each(std::byte{0xCD}));
  EXPECT_THAT(bytes.last(5), Each(std::byte{0xCD}));
  EXPECT_TRUE(std::ranges::equal(view.first(file_words / 2), std::span{words}.first(file_words / 2)));

  auto part = buffer.slice(file_words / 2 - 1, 2);
  auto const begin = file_bytes / 2 - sizeof(Word);
  auto const missing = [&](std::function<void()> const& call) { expect_missing(path, begin, begin + 8, call); };
  missing([&] { static_cast<void>(part.host_view()); });
  missing([&] { static_cast<void>(part.map(MapMode::read)); });
  missing([&] { static_cast<void>(part.to_vector()); });
  missing([&] { part.sync_to_host_async().wait(); });
  missing([&] { static_cast<void>(part.device_view(device("cpu"))); });
  missing([&] { static_cast<void>(part.device_view(sim)); });
  missing([&] {
    UnifiedBuffer<Word> target(2, {.manager = &manager, .device = &sim});
    unimem::copy(part, target.slice(0, part.size()));
  });
  auto const nothing = Kernel("nothing").host([](WorkItem, std::span<Word const>) {});
  missing([&] { launch(device("cpu").default_queue(), nothing, Range{1}, read(part)); });

  auto rest = buffer.slice(0, file_words / 2);
  EXPECT_TRUE(std::ranges::equal(rest.host_view(), std::span{words}.first(file_words / 2)));
  EXPECT_EQ(rest.device_view(sim).data()[11], 11U);

  // Where it has grown again, what read 0xCD goes on to, until the buffer begins anew.
  folder.write("words", words);
  missing([&] { static_cast<void>(part.host_view()); });
  EXPECT_THAT(bytes.last(5), Each(std::byte{0xCD}));
  buffer.reset();
  EXPECT_EQ(buffer.to_vector(), words);
}

TEST_F(MappedBuffers, ZerosBehindTheEndAreNoData) {
  auto const path = folder.write("words", numbers(1'000));
  auto buffer = from_file<Word>(path, mapped());
  EXPECT_EQ(buffer.host_view()[999], 999U);
  std::filesystem::resize_file(path, 3'998);  // within the page, which stays, with zeros behind
  expect_missing(path, 0, 4'000, [&] { static_cast<void>(buffer.host_view()); });
  expect_missing(path, 0, 4'000, [&] { static_cast<void>(buffer.to_vector()); });
  auto first = buffer.slice(0, 999);
  EXPECT_EQ(first.to_vector(), numbers(999));
}

TEST_F(MappedBuffers, ShorterBeforeAnybodyLooked) {
  auto const path = folder.write("words", numbers());
  auto buffer = from_file<Word>(path, mapped());
  std::filesystem::resize_file(path, 0);
  expect_missing(path, 0, file_bytes, [&] { static_cast<void>(buffer.host_view()); });
  expect_missing(path, 0, file_bytes, [&] { static_cast<void>(buffer.to_vector()); });
  EXPECT_THROW(static_cast<void>(buffer.device_view(sim)), IoError);
}

TEST_F(MappedBuffers, ModesAndOffsetsThatCannotBe) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  for (auto const mode : {FileMode::copy_on_write, FileMode::read_write}) {
    try {
      static_cast<void>(from_file<Word>(path, mapped(mode)));
      ADD_FAILURE() << "no error";
    } catch (InvalidArgument const& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("FileAccess::mapped"), HasSubstr("FileMode::read")));
    }
  }
  auto made = mapped();
  made.offset = 6;
  made.count = 100;
  try {
    static_cast<void>(from_file<Word>(path, made));
    ADD_FAILURE() << "no error";
  } catch (InvalidArgument const& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("offset"), HasSubstr("6"), HasSubstr("multiple of 4")));
  }
  made.offset = 7;
  auto const odd = from_file<std::byte>(path, made).to_vector();
  EXPECT_EQ(std::memcmp(odd.data(), std::as_bytes(std::span{words}).data() + 7, 100), 0);
  EXPECT_EQ(from_file<Word>(folder.write("none", std::string{}), mapped()).size(), 0U);

  auto buffer = from_file<Word>(path, mapped());
  EXPECT_THROW(static_cast<void>(buffer.host()), UnsupportedOperation);
  EXPECT_THROW(buffer.fill(1), UnsupportedOperation);
}

TEST_F(MappedBuffers, FromAnyOffset) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  auto const whole = std::as_bytes(std::span{words});
  expect_in_random_cases(50, [&] {
    auto made = mapped();
    made.offset = *rc::gen::inRange<std::uint64_t>(0, file_bytes);
    made.count = static_cast<std::size_t>(*rc::gen::inRange<std::uint64_t>(0, file_bytes - made.offset + 1));
    auto buffer = from_file<std::byte>(path, made);
    auto const view = buffer.host_view();
    RC_ASSERT(view.size() == *made.count);
    if (view.empty()) return;
    RC_ASSERT(std::memcmp(view.data(), whole.data() + made.offset, view.size()) == 0);
    auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    RC_ASSERT(reinterpret_cast<std::uintptr_t>(view.data()) % page == made.offset % page);
  });
}

TEST_F(MappedBuffers, TwoOfThemOverOneFile) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  auto late = mapped();
  late.offset = file_bytes / 2;
  auto one = from_file<Word>(path, mapped()), other = from_file<Word>(path, late);
  EXPECT_TRUE(std::ranges::equal(one.host_view().subspan(file_words / 2), other.host_view()));
  EXPECT_EQ(bytes_mapped(), file_bytes + file_bytes / 2);
  {
    auto const gone = std::move(one);
    EXPECT_EQ(gone.size(), file_words);
  }
  EXPECT_EQ(bytes_mapped(), file_bytes / 2);
  EXPECT_EQ(other.host_view().back(), words.back());
}

TEST_F(MappedBuffers, ATensorWhereItLies) {
  // A header of 16 bytes less than a line of cache, as npy has it: its data begin at byte 128.
  std::string file("\x93NUMPY\x01\0", 8);
  std::string header = "{'descr': '<u4', 'fortran_order': False, 'shape': (1000,), }";
  header.resize(128 - 10 - 1, ' ');
  header += '\n';
  file += std::string{static_cast<char>(header.size()), '\0'} + header;
  auto const words = numbers(1'000);
  file.append(reinterpret_cast<char const*>(words.data()), words.size() * sizeof(Word));
  auto const tensors = open_tensors(folder.write("words.npy", file));
  auto buffer = tensors.begin()->second.open<Word>(mapped());
  EXPECT_TRUE(std::ranges::equal(buffer.host_view(), words));
  EXPECT_EQ(bytes_mapped(), 4'000U);
  EXPECT_EQ(bytes_read(), 0U);
}

TEST_F(MappedBuffers, ManyThreadsWhileTheFileGetsShorter) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  auto buffer = from_file<Word>(path, mapped());
  auto const view = buffer.host_view();
  constexpr auto left = file_words / 4;
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < 6; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(2026 + thread);
        for (int i = 0; i < 3'000; ++i) {
          auto const at = random() % (file_words - 8);
          for (auto word = at; word < at + 8; ++word) {
            auto const seen = view[word];
            if (seen != word && (seen != 0xCDCDCDCD || word < left)) {
              ADD_FAILURE() << "word " << word << " is " << seen;
              return;
            }
          }
          auto part = buffer.slice(at, 8);
          try {
            auto const there = part.map(MapMode::read);
            EXPECT_TRUE(at + 8 > left || there[3] == at + 3);
          } catch (IoError const&) {
            EXPECT_GT(at + 8, left);
          }
        }
      });
    }
    std::filesystem::resize_file(path, left * sizeof(Word));
  }
  EXPECT_TRUE(std::ranges::equal(view.first(left), std::span{words}.first(left)));
  EXPECT_THAT(std::as_bytes(view.subspan(left)), Each(std::byte{0xCD})) << "to the last page";
}

TEST_F(MappedBuffers, AForkedChildLooksAtTheSamePages) {
  auto const words = numbers();
  auto const path = folder.write("words", words);
  auto buffer = from_file<Word>(path, mapped());
  auto const view = buffer.host_view();
  auto const child = ::fork();
  if (child == 0) {
    bool const all_there = std::memcmp(view.data(), words.data(), file_bytes) == 0;
    bool const shorter = ::truncate(path.c_str(), file_bytes / 2) == 0;
    auto const behind = *const_cast<Word const volatile*>(&view[file_words - 1]);
    std::_Exit(all_there && shorter && behind == 0xCDCDCDCD ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(view[file_words - 1], 0xCDCDCDCD) << "the parent finds out by itself";
  expect_missing(path, 0, file_bytes, [&] { static_cast<void>(buffer.host_view()); });
}

class MappedBuffersModel : public MappedBuffers, public ::testing::WithParamInterface<char const*> {};

TEST_P(MappedBuffersModel, AnythingAtRandom) {
  auto const words = numbers(2 * MiB / sizeof(Word) + 77);
  auto const path = folder.write("words", words);
  manager.set_limit(device("cpu"), 1 * MiB);
  auto const seed = ::testing::UnitTest::GetInstance()->random_seed() + 2026;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(static_cast<unsigned>(seed));
  auto made = mapped();
  if (std::string_view(GetParam()) == "cpu") made.device = &device("cpu");
  auto buffer = from_file<Word>(path, made);
  for (int i = 0; i < 1'500; ++i) {
    SCOPED_TRACE(i);
    auto const begin = random() % words.size();
    auto const count = std::min<std::size_t>(words.size() - begin, 1 + random() % 60'000);
    auto part = buffer.slice(begin, count);
    auto const expected = std::span{words}.subspan(begin, count);
    auto& where = random() % 2 == 0 ? sim : device("cpu");
    switch (random() % 10) {
      case 0:
        ASSERT_TRUE(std::ranges::equal(part.host_view(), expected));
        break;
      case 1:
        ASSERT_TRUE(std::ranges::equal(part.map(MapMode::read), expected));
        break;
      case 2:
        ASSERT_TRUE(std::ranges::equal(part.to_vector(), expected));
        break;
      case 3: {
        auto const there = part.device_view(where);
        ASSERT_TRUE(std::ranges::equal(std::span{there.data(), there.size()}, expected));
        break;
      }
      case 4:
        static_cast<void>(part.prefetch(where));
        break;
      case 5:
        part.sync_to_host_async().wait();
        break;
      case 6:
        random() % 2 == 0 ? buffer.release_device() : buffer.release_host();
        break;
      case 7:
        random() % 2 == 0 ? buffer.free() : buffer.reset();
        break;
      case 8: {
        UnifiedBuffer<Word> target(count, {.manager = &manager, .device = &where});
        unimem::copy(part, target.slice(0, part.size()));
        ASSERT_TRUE(std::ranges::equal(target.to_vector(), expected));
        break;
      }
      default:
        buffer.discard();
        break;
    }
    buffer.core().validate();
  }
  EXPECT_EQ(words_of(path), words);
}

INSTANTIATE_TEST_SUITE_P(AtHomeOn, MappedBuffersModel, ::testing::Values("sim", "cpu"));

}  // namespace
}  // namespace unimem::testing
