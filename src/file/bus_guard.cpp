#include "file/bus_guard.hpp"

#include <unimem/core/error.hpp>

#include "core/system_page.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>

namespace unimem::detail {

/// One entry of the list that the handler walks. Entries are reused and never freed: a handler may be looking at any of
/// them.
struct GuardedRegionNode {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  ///< 0: guards nothing. Written last when it begins to, first when it ceases
  std::atomic<std::uintptr_t> first_missing{std::numeric_limits<std::uintptr_t>::max()};
  std::atomic<std::uintptr_t> last_missing{0};  ///< the address behind it; 0: nothing is missing
  std::atomic<int> descriptor{-1};              ///< of the file that all of it is a mapping of
  std::atomic<std::uint64_t> offset{0};         ///< of its first byte there
  std::atomic<bool> taken{true};
  GuardedRegionNode* next = nullptr;
};

namespace {

// The handler reads this without a lock: it may interrupt a thread anywhere.
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free && std::atomic<GuardedRegionNode*>::is_always_lock_free);

std::atomic<GuardedRegionNode*> first_node{nullptr};
struct ::sigaction previous_action{};
std::uintptr_t page_bytes = 0;       // set before the handler is installed
std::byte const* filling = nullptr;  // what is put in the place of missing pages, likewise
/// A mapping for each 256 KiB of what is missing: the system has some 65'000 for a process.
constexpr std::size_t filling_bytes = std::size_t{256} << 10;

/// How much from `page` on is missing, as far as `filling` goes: what lies beyond the file's end, else one page.
std::size_t missing_bytes(GuardedRegionNode const& region, std::uintptr_t page, std::uintptr_t end) noexcept {
  auto const descriptor = region.descriptor.load(std::memory_order_acquire);
  if (descriptor < 0) return page_bytes;
  auto const begin = region.begin.load(std::memory_order_acquire);
  auto const position = region.offset.load(std::memory_order_acquire) + (page - begin);
  struct ::stat status{};
  if (::fstat(descriptor, &status) != 0 || static_cast<std::uint64_t>(status.st_size) > position) return page_bytes;
  return std::min<std::size_t>(end - page, filling_bytes);
}

/// Release, the first address before the last: who sees that something is missing sees from where on (`missing`).
void note_missing(GuardedRegionNode& region, std::uintptr_t first, std::uintptr_t last) noexcept {
  auto known = region.first_missing.load(std::memory_order_relaxed);
  while (first < known && !region.first_missing.compare_exchange_weak(known, first, std::memory_order_release)) {
  }
  known = region.last_missing.load(std::memory_order_relaxed);
  while (last > known && !region.last_missing.compare_exchange_weak(known, last, std::memory_order_release)) {
  }
}

bool mend(std::uintptr_t address) noexcept {
  // Acquire: each entry is put before the others with a release, and by one exchange after the other.
  for (auto* node = first_node.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    auto end = node->end.load(std::memory_order_acquire);
    auto begin = node->begin.load(std::memory_order_acquire);
    // An entry may be reused between the two: a beginning that is its new region's comes behind the 0 that its old one
    // left for an end.
    for (auto now = node->end.load(std::memory_order_acquire); now != end;
         now = node->end.load(std::memory_order_acquire)) {
      end = now;
      begin = node->begin.load(std::memory_order_acquire);
    }
    if (address >= end || address < begin) continue;
    auto const page = address & ~(page_bytes - 1);
    auto const bytes = missing_bytes(*node, page, end);
    // Before it can be seen. No byte of it is ever anything else: another thread may be reading there. The call itself,
    // not the library's: what stands before that (a sanitizer, a preloaded allocator) need not be safe in a signal
    // handler. Of no bytes of shared memory it makes another mapping of the same pages.
    note_missing(*node, page, page + bytes);
    return ::syscall(SYS_mremap, filling, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, page) != -1;
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
    // The access is made again on return, with the result that it would have had without this handler.
    ::sigaction(SIGBUS, &previous_action, nullptr);
  } else {
    previous_action.sa_handler(signal);
  }
}

std::byte const* make_filling() {
  auto* const made = ::mmap(nullptr, filling_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) {
    throw IoError("memory to stand for missing pages of mapped files", errno, "cannot map");
  }
  std::memset(made, 0xCD, filling_bytes);
  ::mprotect(made, filling_bytes, PROT_READ);
  return static_cast<std::byte const*>(made);
}

void install_handler() {
  page_bytes = system_page_bytes();
  filling = make_filling();
  struct ::sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  // Before ours is installed: it may run at once.
  ::sigaction(SIGBUS, nullptr, &previous_action);
  ::sigaction(SIGBUS, &action, nullptr);
}

GuardedRegionNode* take_node() {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  for (auto* node = first_node.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    bool free = false;
    // Acquire: that its last region has ended comes before what is said of the next.
    if (node->taken.compare_exchange_strong(free, true, std::memory_order_acquire)) return node;
  }
  auto* const node = new GuardedRegionNode;  // for good: see GuardedRegionNode
  node->next = first_node.load(std::memory_order_relaxed);
  while (!first_node.compare_exchange_weak(node->next, node, std::memory_order_release)) {
  }
  return node;
}

}  // namespace

GuardedRegion::GuardedRegion(void* begin, std::size_t bytes, Source source) : node_(take_node()) {
  // Relaxed: the end, which makes it a region, is a release. The beginning is one, too: it comes behind the old end
  // (`mend`).
  node_->first_missing.store(std::numeric_limits<std::uintptr_t>::max(), std::memory_order_relaxed);
  node_->last_missing.store(0, std::memory_order_relaxed);
  node_->descriptor.store(source.descriptor, std::memory_order_relaxed);
  node_->offset.store(source.offset, std::memory_order_relaxed);
  node_->begin.store(reinterpret_cast<std::uintptr_t>(begin), std::memory_order_release);
  node_->end.store(reinterpret_cast<std::uintptr_t>(begin) + bytes, std::memory_order_release);
}

GuardedRegion::~GuardedRegion() {
  // Release: whoever takes it next finds no region.
  node_->end.store(0, std::memory_order_release);
  node_->taken.store(false, std::memory_order_release);
}

bool GuardedRegion::broken() const noexcept {
  return node_->last_missing.load(std::memory_order_acquire) != 0;
}

ByteRange GuardedRegion::missing() const noexcept {
  auto const last = node_->last_missing.load(std::memory_order_acquire);
  if (last == 0) return {};
  auto const begin = node_->begin.load(std::memory_order_relaxed);  // this region's own
  return {node_->first_missing.load(std::memory_order_acquire) - begin, last - begin};
}

}  // namespace unimem::detail
