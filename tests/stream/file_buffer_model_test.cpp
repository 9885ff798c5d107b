#include <unimem/core/error.hpp>

#include "stream/file_buffer_fixture.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

// Random operations on buffers that are made from files, with less memory than that on the host and on a device, beside
// a plain array that tells what each must read, and another that tells what the file must have.

namespace unimem::testing {
namespace {

class FileBuffersModel : public FileBuffers, public ::testing::WithParamInterface<FileMode> {
 protected:
  static constexpr std::size_t words = 2 * MiB / sizeof(Word) + 77;

  static std::size_t operations() {
    auto const* const wanted = std::getenv("UNIMEM_TEST_OPERATIONS");
    return wanted == nullptr ? 500 : std::strtoull(wanted, nullptr, 10);
  }

  void expect_equal(std::span<Word const> seen, std::size_t begin) const {
    auto const expected = std::span{truth}.subspan(begin, seen.size());
    if (std::memcmp(seen.data(), expected.data(), expected.size_bytes()) == 0) return;
    auto const at = static_cast<std::size_t>(std::ranges::mismatch(seen, expected).in1 - seen.begin());
    FAIL() << "word " << begin + at << " is " << seen[at] << ", not " << expected[at];
  }

  void step(UnifiedBuffer<Word>& buffer, std::mt19937& random) {
    auto const begin = random() % words;
    auto const most = random() % 3 == 0 ? words / 4 : std::size_t{3'000};
    auto const count = std::min<std::size_t>(words - begin, 1 + random() % most);
    auto part = buffer.slice(begin, count);
    bool const writes = GetParam() != FileMode::read && random() % 2 == 0;
    auto const value = static_cast<Word>(random());
    auto const wrote = [&] { std::fill_n(truth.begin() + static_cast<std::ptrdiff_t>(begin), count, value); };
    auto& device_of_step = random() % 2 == 0 ? sim : device("cpu");
    switch (random() % 12) {
      case 0:
      case 1:
        return expect_equal(part.map(MapMode::read), begin);
      case 2:
        return expect_equal(part.to_vector(), begin);
      case 3: {
        auto const there = part.device_view(device_of_step);
        return expect_equal({there.data(), there.size()}, begin);
      }
      case 4:
        static_cast<void>(part.prefetch(device_of_step));
        return;
      case 5:
        return expect_equal(buffer.to_vector(), 0);
      case 6:
        if (random() % 4 == 0) buffer.release_device();
        return;
      case 7:
        buffer.flush();
        if (GetParam() == FileMode::read_write) in_file = truth;
        ASSERT_EQ(words_of(folder / "model"), in_file);
        return;
      default:
        break;
    }
    if (!writes) return;
    if (random() % 3 == 0) {
      auto const there = part.device(device_of_step);
      std::fill_n(there.data(), count, value);
    } else if (random() % 2 == 0) {
      std::ranges::fill(part.map(random() % 2 == 0 ? MapMode::discard : MapMode::write), value);
    } else {
      part.fill(value);
    }
    wrote();
  }

  std::vector<Word> truth, in_file;
};

TEST_P(FileBuffersModel, ReadsWhatWasWritten) {
  auto const* const chosen = std::getenv("UNIMEM_TEST_SEED");
  auto const seed = chosen != nullptr ? static_cast<unsigned>(std::strtoul(chosen, nullptr, 10)) : 2026U;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random{seed};
  truth = in_file = numbers(words);
  auto const path = folder.write("model", truth);
  MemoryManager small{ManagerOptions{.spill = {.directory = (folder / ".").string()}}};
  small.set_limit(device("cpu"), MiB + MiB / 2);
  small.set_limit(sim, MiB);
  auto made = options(GetParam());
  made.manager = &small;
  {
    auto buffer = from_file<Word>(path, made);
    for (std::size_t i = 0; i < operations() && !HasFatalFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "operation " << i);
      step(buffer, random);
      buffer.core().validate();
    }
    ASSERT_EQ(buffer.to_vector(), truth);
  }
  if (GetParam() == FileMode::read_write) {
    for (int i = 0; i < 200 && words_of(folder / "model") != truth; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    in_file = truth;
  }
  EXPECT_EQ(words_of(folder / "model"), in_file);
  EXPECT_GT(small.statistics().host_reclaims, 0U);
}

INSTANTIATE_TEST_SUITE_P(Modes, FileBuffersModel,
                         ::testing::Values(FileMode::read, FileMode::copy_on_write, FileMode::read_write),
                         [](auto const& mode) {
                           return mode.param == FileMode::read            ? "read"
                                  : mode.param == FileMode::copy_on_write ? "copy_on_write"
                                                                          : "read_write";
                         });

}  // namespace
}  // namespace unimem::testing
