#include "cluster/ranks.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <new>

// More bytes than an int counts are one message.

namespace unimem::testing {
namespace {

/// Far more addresses than memory: each MiB of them is the same one.
class RepeatedMemory {
 public:
  static constexpr std::size_t unit = std::size_t{1} << 20;
  explicit RepeatedMemory(std::size_t units) : bytes_(units * unit) {
    int const file = ::memfd_create("unit", 0);
    if (file < 0 || ::ftruncate(file, unit) != 0) throw std::bad_alloc();
    address_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (std::size_t i = 0; i < units; ++i) {
      ::mmap(static_cast<char*>(address_) + i * unit, unit, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    }
    ::close(file);
  }
  RepeatedMemory(RepeatedMemory const&) = delete;
  RepeatedMemory& operator=(RepeatedMemory const&) = delete;
  ~RepeatedMemory() { ::munmap(address_, bytes_); }
  [[nodiscard]] std::byte* begin() const { return static_cast<std::byte*>(address_); }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* address_ = nullptr;
};

using LargeMessages = RanksTest;

TEST_F(LargeMessages, MoreBytesThanAnIntCountsAreOneMessage) {
  if (!has_partner()) GTEST_SKIP() << "there is no rank to talk to";
  RepeatedMemory const memory(2060);
  ASSERT_GT(memory.size(), std::size_t{INT_MAX});
  auto buffer = manager.wrap<std::byte>(memory.begin(), memory.size(), Location::host, Ownership::borrow());
  auto const size = memory.size() - 3;
  if (is_first()) {
    std::fill_n(memory.begin(), RepeatedMemory::unit, std::byte{0x5A});
    mpi::send(read(buffer, 0, size), partner(), 1);
    mpi::isend(read(buffer, 0, size), partner(), 1).wait();
  } else {
    EXPECT_EQ(mpi::receive(write(buffer, 0, size), partner(), 1).bytes, size);
    EXPECT_EQ(std::count(memory.begin(), memory.begin() + RepeatedMemory::unit, std::byte{0x5A}),
              std::ptrdiff_t{RepeatedMemory::unit});
    std::fill_n(memory.begin(), RepeatedMemory::unit, std::byte{0});
    mpi::ireceive(write(buffer, 0, size), partner(), 1).wait();
    EXPECT_EQ(std::count(memory.begin(), memory.begin() + RepeatedMemory::unit, std::byte{0x5A}),
              std::ptrdiff_t{RepeatedMemory::unit});
  }
}

}  // namespace
}  // namespace unimem::testing
