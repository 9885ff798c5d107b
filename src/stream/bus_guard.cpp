#include "stream/bus_guard.hpp"

#include <unimem/core/error.hpp>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>

namespace unimem::detail {

/// One entry of the list that the handler walks. Entries are reused and never freed: a handler may be looking at any of
/// them.
struct GuardedRegionNode {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  ///< 0: guards nothing. Written last when it begins to, first when it ceases
  std::atomic<bool> broken{false};
  std::atomic<bool> taken{true};
  GuardedRegionNode* next = nullptr;
};

namespace {

// What the handler reads must need no lock: it may interrupt a thread anywhere.
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<GuardedRegionNode*>::is_always_lock_free);

std::atomic<GuardedRegionNode*> first_node{nullptr};
struct ::sigaction previous_action{};
std::uintptr_t page_bytes = 4096;  // set before the handler is installed

bool mend(std::uintptr_t address) noexcept {
  for (auto* node = first_node.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    auto const end = node->end.load(std::memory_order_acquire);
    if (address >= end || address < node->begin.load(std::memory_order_acquire)) continue;
    auto* const page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
    // The call itself, not the library's: what stands before that (a sanitizer, a preloaded allocator) need not be safe
    // in a signal handler.
    auto const zeros = ::syscall(SYS_mmap, page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros == -1) return false;
    node->broken.store(true, std::memory_order_release);
    return true;
  }
  return false;
}

void on_bus_error(int signal, ::siginfo_t* info, void* context) noexcept {
  int const saved_errno = errno;
  // Failing memory (BUS_MCEERR_*) is nothing to paper over.
  bool const mended = info->si_code == BUS_ADRERR && mend(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = saved_errno;
  if (mended) return;
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) {
    // The access is made again on return, and meets what would have happened without us.
    ::sigaction(SIGBUS, &previous_action, nullptr);
  } else {
    previous_action.sa_handler(signal);
  }
}

void install_handler() {
  page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct ::sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  // Before ours is installed: it may run at once.
  ::sigaction(SIGBUS, nullptr, &previous_action);
  ::sigaction(SIGBUS, &action, nullptr);
}

GuardedRegionNode* take_node() {
  for (auto* node = first_node.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    bool free = false;
    if (node->taken.compare_exchange_strong(free, true, std::memory_order_acquire)) return node;
  }
  auto* const node = new GuardedRegionNode;  // for good: see GuardedRegionNode
  node->next = first_node.load(std::memory_order_relaxed);
  while (!first_node.compare_exchange_weak(node->next, node, std::memory_order_release)) {
  }
  return node;
}

}  // namespace

GuardedRegion::GuardedRegion(void* begin, std::size_t bytes) : node_(take_node()) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  node_->broken.store(false, std::memory_order_relaxed);
  node_->begin.store(reinterpret_cast<std::uintptr_t>(begin), std::memory_order_release);
  node_->end.store(reinterpret_cast<std::uintptr_t>(begin) + bytes, std::memory_order_release);
}

GuardedRegion::~GuardedRegion() {
  node_->end.store(0, std::memory_order_release);
  node_->taken.store(false, std::memory_order_release);
}

bool GuardedRegion::broken() const noexcept {
  return node_->broken.load(std::memory_order_acquire);
}

}  // namespace unimem::detail
