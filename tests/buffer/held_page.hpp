#pragma once

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

namespace unimem::testing {

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
  [[nodiscard]] static bool has_reader() { return reached_; }
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

}  // namespace unimem::testing
