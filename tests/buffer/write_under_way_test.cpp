#include "buffer/buffer_fixture.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <thread>

// What the library itself writes to the memory of a buffer on the host is written without its lock, and counts before
// it has been written: copies that are made meanwhile are of half of it.

namespace unimem::testing {
namespace {

/// Two pages of words, of which the second can be read only once `release` has been called: a thread that reads it
/// waits.
class HeldPage {
 public:
  HeldPage() {
    base_ = ::mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) std::abort();
    std::ranges::fill(words(), 7U);
    held_ = static_cast<std::byte*>(base_) + page_;
    ::mprotect(held_, page_, PROT_NONE);
    reached_ = released_ = false;
    struct sigaction action{};
    action.sa_sigaction = wait_at_it;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  HeldPage(HeldPage const&) = delete;
  HeldPage& operator=(HeldPage const&) = delete;
  ~HeldPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(base_, 2 * page_);
  }

  [[nodiscard]] std::span<std::uint32_t> words() const {
    return {static_cast<std::uint32_t*>(base_), 2 * page_ / sizeof(std::uint32_t)};
  }
  static void await_reader() {
    while (!reached_) ::sched_yield();
  }
  static void release() { released_ = true; }

 private:
  static void wait_at_it(int, siginfo_t* info, void*) {
    auto* const at = static_cast<std::byte*>(info->si_addr);
    if (at < held_ || at >= held_ + page_) std::_Exit(99);
    reached_ = true;
    while (!released_) ::sched_yield();
    ::mprotect(held_, page_, PROT_READ);
  }

  inline static std::size_t const page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  inline static std::byte* held_ = nullptr;
  inline static std::atomic<bool> reached_{false}, released_{false};
  void* base_ = nullptr;
  struct sigaction before_{};
};

using WriteUnderWay = BufferTest;

TEST_F(WriteUnderWay, CopiesMadeMeanwhileAreStaleAfterwards) {
  HeldPage const source;
  auto const count = source.words().size();
  auto buffer = synchronized(count, "half written");
  buffer.release_device();
  auto const before = sim.transfers();
  std::size_t copied = 0;
  std::jthread other([&] {
    HeldPage::await_reader();
    buffer.sync_to_device();
    copied = sim.transfers().since(before).host_to_device_bytes;
    HeldPage::release();
  });
  buffer.copy_from(source.words());
  other.join();
  ASSERT_EQ(copied, count * sizeof(std::uint32_t)) << "no copy was made while the buffer was being written";
  EXPECT_FALSE(buffer.valid_on(sim));
  EXPECT_EQ(device_bytes(buffer, sim), std::vector<std::uint32_t>(count, 7U));
  EXPECT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(count, 7U));
}

TEST_F(WriteUnderWay, IsNotBroughtAheadByOptimizing) {
  HeldPage const source;
  auto buffer = synchronized(source.words().size(), "half written");
  buffer.release_device();
  buffer.will_use();
  std::size_t placed = 1;
  std::jthread other([&] {
    HeldPage::await_reader();
    placed = manager.optimize().placed_bytes;
    HeldPage::release();
  });
  buffer.copy_from(source.words());
  other.join();
  EXPECT_EQ(placed, 0U);
  EXPECT_EQ(manager.optimize().placed_bytes, source.words().size_bytes()) << "now it is";
  EXPECT_EQ(device_bytes(buffer, sim), std::vector<std::uint32_t>(source.words().size(), 7U));
}

TEST_F(WriteUnderWay, CopiesOfOtherBytesStayValid) {
  HeldPage const source;
  auto const half = source.words().size() / 2;
  auto buffer = synchronized(2 * half, "written at its end");
  buffer.sync_to_device();
  auto const before = sim.transfers();
  std::jthread other([&] {
    HeldPage::await_reader();
    HeldPage::release();
  });
  buffer.copy_from(std::span<const std::uint32_t>(source.words().subspan(half)), half);
  other.join();
  buffer.sync_to_device();
  EXPECT_EQ(sim.transfers().since(before).host_to_device_bytes, half * sizeof(std::uint32_t));
  auto expected = counting(half);
  expected.resize(2 * half, 7U);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

}  // namespace
}  // namespace unimem::testing
