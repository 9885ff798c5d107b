#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "manager/backing_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {

/// A file of words, each of which is its number, and buffers that are made from it.
class NumberedFile {
 public:
  static constexpr std::size_t bytes = std::size_t{1} << 20, words = bytes / sizeof(std::uint32_t);
  using Buffer = UnifiedBuffer<std::uint32_t>;

  NumberedFile() {
    auto name = (std::filesystem::temp_directory_path() / "unimem-backed-XXXXXX").string();
    auto const made = ::mkstemp(name.data());
    path_ = name;
    std::vector<std::uint32_t> numbers(words);
    std::iota(numbers.begin(), numbers.end(), 0U);
    bool const written = made >= 0 && ::pwrite(made, numbers.data(), bytes, 0) == static_cast<::ssize_t>(bytes);
    ::close(made);
    if (!written) throw std::runtime_error("no file of numbers");
  }
  NumberedFile(NumberedFile const&) = delete;
  NumberedFile& operator=(NumberedFile const&) = delete;
  ~NumberedFile() { std::filesystem::remove(path_); }

  [[nodiscard]] Buffer buffer(MemoryManager& manager, Device& device, FileMode mode) const {
    BufferOptions options;
    options.manager = &manager;
    options.device = &device;
    auto file = detail::File::open(path_, mode == FileMode::read_write ? O_RDWR : O_RDONLY, "testing");
    return {Shape(words),
            BufferCore::make(std::move(options), std::make_shared<detail::BackingFile>(
                                                     std::make_shared<detail::File const>(std::move(file)), mode,
                                                     detail::BackingFile::Part{0, bytes}, manager.file_traffic()))};
  }
  [[nodiscard]] std::uint32_t word(std::size_t at) const {
    std::uint32_t found = 0;
    auto const file = detail::File::open(path_, O_RDONLY, "testing");
    static_cast<void>(file.read(at * sizeof(found), std::as_writable_bytes(std::span{&found, 1}), "testing"));
    return found;
  }

 private:
  std::string path_;
};

/// What is wrong with buffers that are made from files, under half of the memory that they need, if anything is.
[[nodiscard]] inline std::optional<std::string> broken_in_files() try {
  constexpr auto words = NumberedFile::words, step = std::size_t{16} << 10;
  static auto& device = make_sim({.memory_bytes = std::size_t{16} << 20});
  NumberedFile const file;
  MemoryManager manager{ManagerOptions{.spill = {.directory = std::filesystem::temp_directory_path().string()}}};
  MemoryManager plain;
  for (auto* const each : {&manager, &plain}) each->set_limit(unimem::device("cpu"), NumberedFile::bytes / 2);
  auto const is_right = [](NumberedFile::Buffer& buffer, std::uint32_t more) {
    for (std::size_t begin = 0; begin < words; begin += step) {
      auto part = buffer.slice(begin, step);
      auto const seen = part.map(MapMode::read);
      for (std::size_t i = 0; i < step; i += 100) {
        if (seen[i] != begin + i + more) return false;
      }
    }
    return true;
  };
  {
    auto buffer = file.buffer(plain, device, FileMode::read);
    if (!is_right(buffer, 0)) return "other bytes came from the file";
    if (plain.statistics().file_read_bytes != NumberedFile::bytes) return "the file was read more than once";
    auto kept = buffer.slice(0, step);
    auto const held = kept.map(MapMode::read);
    if (!is_right(buffer, 0) || !is_right(buffer, 0)) return "other bytes came from the file again";
    for (std::size_t i = 0; i < step; ++i) {
      if (held[i] != i) return "memory went from under a mapping";
    }
    try {
      buffer.fill(1U);
      return "what is to be read was written";
    } catch (UnsupportedOperation const&) {  // NOLINT(bugprone-empty-catch): as it should be
    }
  }
  auto const add_one = [](NumberedFile::Buffer& buffer) {
    for (std::size_t begin = 0; begin < words; begin += step) {
      auto part = buffer.slice(begin, step);
      for (auto& word : part.map(MapMode::write)) ++word;
    }
  };
  {
    auto buffer = file.buffer(manager, device, FileMode::copy_on_write);
    add_one(buffer);
    if (!is_right(buffer, 1)) return "what was written to a copy is not there";
    if (file.word(words - 1) != words - 1 || file.word(1) != 1) return "a copy's writes went to the file";
    buffer.discard();
    if (!is_right(buffer, 0)) return "what a copy forgot did not come from the file again";
  }
  {
    auto buffer = file.buffer(plain, device, FileMode::read_write);
    add_one(buffer);
    if (!is_right(buffer, 1)) return "what was written is not there";
    buffer.flush();
    if (file.word(0) != 1 || file.word(words - 1) != words) return "what was flushed is not in the file";
    auto part = buffer.slice(7, 1);
    part.device(device).data()[0] = 5U;
  }
  for (int i = 0; i < 500 && file.word(7) != 5; ++i) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  if (file.word(7) != 5) return "what a device had newer did not reach the file at the end";
  return std::nullopt;
} catch (std::exception const& failure) {
  return failure.what();
}

}  // namespace unimem::testing
