#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace unimem::testing {

/// Bytes in which each place differs from those a block away.
inline std::vector<std::byte> patterned(std::size_t count, std::uint64_t from = 0) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((from + i) * 0x9E3779B97F4A7C15ULL >> 56);
  return bytes;
}

/// Has the disk have all of a file, and the page cache nothing of it.
inline void make_cold(std::string const& path) {
  auto const descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0) << path;
  EXPECT_EQ(::fdatasync(descriptor), 0) << path;
  EXPECT_EQ(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0) << path;
  ::close(descriptor);
}

/// Has the page cache have all of it.
inline void make_warm(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> part(1 << 20);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() != 0) {
  }
}

/// What the system has counted of this process: `rchar` and `wchar`, which calls asked for, `read_bytes`, which a disk
/// gave.
inline std::uint64_t system_count_of(std::string const& which) {
  std::ifstream counts("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (counts >> name >> value) {
    if (name == which + ":") return value;
  }
  ADD_FAILURE() << "/proc/self/io has no " << which;
  return 0;
}

}  // namespace unimem::testing
