#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/file_buffer.hpp>
#include <unimem/stream/save.hpp>
#include <unimem/stream/tensors.hpp>

#include "core/sizes.hpp"
#include "stream/scratch_folder.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::testing {

using Word = std::uint32_t;

/// Named buffers of one manager, and what is saved of them.
class Saving : public ::testing::Test {
 protected:
  using Buffer = UnifiedBuffer<Word>;

  [[nodiscard]] BufferOptions named(std::string name, MemoryManager& of) {
    BufferOptions options;
    options.manager = &of;
    options.device = &sim;
    options.name = std::move(name);
    return options;
  }
  [[nodiscard]] BufferOptions named(std::string name) { return named(std::move(name), manager); }
  [[nodiscard]] Buffer fresh(std::string name, std::size_t count, MemoryManager& of) {
    return Buffer(Shape(count), named(std::move(name), of));
  }
  /// One of words that begin with `first`, current on the host.
  [[nodiscard]] Buffer made(std::string name, std::size_t count, Word first) {
    auto buffer = fresh(std::move(name), count, manager);
    buffer.copy_from(words(count, first));
    return buffer;
  }
  [[nodiscard]] static std::vector<Word> words(std::size_t count, Word first) {
    std::vector<Word> words(count);
    std::iota(words.begin(), words.end(), first);
    return words;
  }
  /// Current on the device alone, and nowhere else is memory.
  void only_on_device(Buffer& buffer) {
    static_cast<void>(buffer.device(sim));
    buffer.release_host();
  }

  ScratchFolder folder;
  MemoryManager manager;
  Device& sim = make_sim({.memory_bytes = 256 * MiB});
};

}  // namespace unimem::testing
