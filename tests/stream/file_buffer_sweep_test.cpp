#include <unimem/core/error.hpp>

#include "file/direct_reader.hpp"
#include "file/failing_calls.hpp"
#include "stream/file_buffer_fixture.hpp"

#include <fcntl.h>

#include <array>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Whichever call to the system is refused that opens, reads, writes or syncs a file or maps memory: a buffer that is
// made from a file loses nothing by it, and what was tried can be done again.

namespace unimem::testing {
namespace {

class FileBuffersSweep : public FileBuffers, public ::testing::WithParamInterface<FileAccess> {
 protected:
  FileAccess const access = GetParam();
  static constexpr std::size_t words = MiB / sizeof(Word);
  using Buffer = UnifiedBuffer<Word>;

  struct Operation {
    std::string_view name;
    std::function<void(Buffer&)> call;
  };

  /// Every part once, in a way that takes more memory than there is.
  static void pass(Buffer& buffer) {
    std::uint64_t sum = 0;
    for (std::size_t begin = 0; begin < words; begin += step) {
      auto part = buffer.slice(begin, step);
      for (auto const word : part.map(MapMode::read)) sum += word;
    }
    ASSERT_NE(sum, 0U);
  }

  /// Runs the operation with the n-th call failing, on a buffer of which every other part has been changed. Returns
  /// whether there was such a call.
  bool attempt(Operation const& operation, std::size_t n) {
    auto truth = numbers(words);
    folder.write("swept", truth);
    MemoryManager small;
    small.set_limit(device("cpu"), 640 * KiB);
    auto made = options(FileMode::read_write);
    made.manager = &small;
    made.access = access;
    auto buffer = from_file<Word>(folder / "swept", made);
    for (std::size_t begin = 0; begin < words; begin += 2 * step) {
      auto part = buffer.slice(begin, 100);
      part.fill(7U);
      std::fill_n(truth.begin() + static_cast<std::ptrdiff_t>(begin), 100, 7U);
    }
    fail_call(n);
    try {
      operation.call(buffer);
    } catch (Error const&) {           // NOLINT(bugprone-empty-catch): told, and nothing lost
    } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch): likewise
    }
    sim.synchronize();
    bool const reached = !call_is_to_fail();
    fail_call(0);
    try {
      static_cast<void>(std::as_const(buffer).at(0));
    } catch (Error const&) {  // NOLINT(bugprone-empty-catch): a failure that could only be told now
    }
    EXPECT_EQ(buffer.to_vector(), truth);
    operation.call(buffer);
    buffer.flush();
    EXPECT_EQ(words_of(folder / "swept"), truth);
    buffer.core().validate();
    return reached;
  }
};

TEST_P(FileBuffersSweep, NoFailingCallLosesAnything) {
  auto const file = detail::File::open_regular(folder.write("probe", numbers(1)).string(), O_RDONLY, "testing it");
  if (!detail::DirectReader::where_possible(file)) GTEST_SKIP() << "no reads past the page cache in this folder";
  std::array const operations{
      Operation{"read a part", [](Buffer& buffer) { static_cast<void>(buffer.slice(3 * step, 10).to_vector()); }},
      Operation{"read all", [](Buffer& buffer) { static_cast<void>(buffer.to_vector()); }},
      Operation{"pass", [](Buffer& buffer) { pass(buffer); }},
      Operation{"read on a device",
                [this](Buffer& buffer) { static_cast<void>(buffer.slice(0, words / 4).device_view(sim)); }},
      Operation{"flush", [](Buffer& buffer) { buffer.flush(); }},
      Operation{"flush from a device",
                [this](Buffer& buffer) {
                  auto part = buffer.slice(0, words / 4);
                  static_cast<void>(part.device(sim));
                  buffer.flush();
                }},
  };
  std::size_t tries = 0;
  for (auto const& operation : operations) {
    bool reached = true;
    for (std::size_t n = 1; reached && !HasFailure(); ++n, ++tries) {
      ASSERT_LT(n, 300U) << "it never passes";
      SCOPED_TRACE(::testing::Message() << operation.name << ", call " << n << " is refused");
      reached = attempt(operation, n);
    }
  }
  EXPECT_GT(tries, 40U);
  for (auto const call : {Call::read, Call::write, Call::sync}) EXPECT_GT(refused(call), 0U);
}

INSTANTIATE_TEST_SUITE_P(Ways, FileBuffersSweep, ::testing::Values(FileAccess::automatic, FileAccess::direct),
                         [](auto const& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace unimem::testing
