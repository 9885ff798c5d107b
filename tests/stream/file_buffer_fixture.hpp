#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/stream/file_buffer.hpp>

#include "core/sizes.hpp"
#include "file/cold_file.hpp"
#include "stream/scratch_folder.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace unimem::testing {

/// Files of words, each of which is its number, and a manager whose host memory is less.
class FileBuffers : public ::testing::Test {
 protected:
  using Word = std::uint32_t;
  static constexpr std::size_t file_bytes = 16 * MiB;
  static constexpr std::size_t file_words = file_bytes / sizeof(Word);
  static constexpr std::size_t step = 64 * KiB / sizeof(Word);

  void SetUp() override { manager.set_limit(device("cpu"), file_bytes / 2); }

  [[nodiscard]] static std::vector<Word> numbers(std::size_t count = file_words) {
    std::vector<Word> words(count);
    std::iota(words.begin(), words.end(), Word{0});
    return words;
  }
  [[nodiscard]] FileOptions options(FileMode mode = FileMode::read) {
    FileOptions made;
    made.mode = mode;
    made.manager = &manager;
    made.device = &sim;
    return made;
  }
  [[nodiscard]] std::uint64_t bytes_read() const { return manager.statistics().file_read_bytes; }
  [[nodiscard]] std::uint64_t bytes_written() const { return manager.statistics().file_written_bytes; }
  [[nodiscard]] std::size_t host_bytes() { return manager.pool(device("cpu"), Location::host).bytes_in_use(); }
  [[nodiscard]] static std::vector<Word> words_of(std::filesystem::path const& path) {
    std::vector<Word> words(std::filesystem::file_size(path) / sizeof(Word));
    std::ifstream(path, std::ios::binary)
        .read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(words.size() * sizeof(Word)));
    return words;
  }
  /// The sum of all words, part by part.
  [[nodiscard]] static std::uint64_t sum_of(UnifiedBuffer<Word>& buffer) {
    std::uint64_t sum = 0;
    for (std::size_t begin = 0; begin < buffer.size(); begin += step) {
      auto part = buffer.slice(begin, std::min(step, buffer.size() - begin));
      auto const mapped = part.map(MapMode::read);
      sum = std::accumulate(mapped.begin(), mapped.end(), sum);
    }
    return sum;
  }
  [[nodiscard]] static std::uint64_t sum_of(std::vector<Word> const& words) {
    return std::accumulate(words.begin(), words.end(), std::uint64_t{0});
  }

  static void set(UnifiedBuffer<Word>& buffer, std::size_t at, Word word) {
    auto part = buffer.slice(at, 1);
    part.map(MapMode::write)[0] = word;
  }

  ScratchFolder folder;
  MemoryManager manager;
  Device& sim = make_sim({.memory_bytes = 64 * MiB});
};

}  // namespace unimem::testing
