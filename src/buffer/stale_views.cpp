#include "buffer/stale_views.hpp"

#include <unimem/core/log.hpp>

#include "core/fork_locks.hpp"
#include "core/stack.hpp"
#include "device/page_watch.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <map>
#include <utility>

namespace unimem::detail {
namespace {

/// Never destroyed: static buffers may end after it.
struct Registry {
  SpinLock lock;
  std::map<std::uintptr_t, StaleViews*> by_base;
};

Registry& registry() {
  static auto* const one = new Registry;  // NOLINT(cppcoreguidelines-owning-memory)
  return *one;
}

struct sigaction before{};

/// What the processor said of the access.
enum class Access : unsigned char { unknown, read, write, call };

Access access_of([[maybe_unused]] void const* context) {
#if defined(__x86_64__)
  auto const error = static_cast<ucontext_t const*>(context)->uc_mcontext.gregs[REG_ERR];
  if ((error & 16) != 0) return Access::call;
  return (error & 2) != 0 ? Access::write : Access::read;
#else
  return Access::unknown;
#endif
}

void report(StaleViews::Found const& found, Access access) {
  auto const* const what = access == Access::write ? "written" : access == Access::read ? "read" : "accessed";
  log(LogLevel::error,
      fmt::format(
          "{}: byte {}, of bytes [{}, {}) that a device has newer values of, was {} through an address kept from "
          "an earlier host access{}",
          found.name, found.byte, found.stale.begin, found.stale.end, what,
          describe_place("accessed from", ProgramPlace::here())));
}

void pass_on(int signal, siginfo_t* information, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, information, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    // The access is tried again when this returns, and ends the process.
    static_cast<void>(sigaction(signal, &before, nullptr));
  }
}

/// Runs on the thread that made the access, between two instructions of code that touches a buffer's memory: not within
/// an allocation or another function that what follows needs.
void on_fault(int signal, siginfo_t* information, void* context) {
  auto const kept = errno;
  auto const access = access_of(context);
  auto const found = information->si_code == SEGV_ACCERR && access != Access::call
                         ? StaleViews::open_at(reinterpret_cast<std::uintptr_t>(information->si_addr))
                         : StaleViews::Found{};
  if (!found.ours) return pass_on(signal, information, context);
  if (found.report) report(found, access);
  errno = kept;
}

bool handles() noexcept {
  static bool const installed = [] {
    static_cast<void>(ProgramPlace::here());  // takes the memory that it takes once
    struct sigaction ours{};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGSEGV, &ours, &before) == 0;
  }();
  struct sigaction now{};
  return installed && sigaction(SIGSEGV, nullptr, &now) == 0 && now.sa_sigaction == on_fault;
}

}  // namespace

void StaleViews::attach(void* base, std::size_t bytes) {
  static_cast<void>(handles());
  auto& known = registry();
  SpinGuard const held{known.lock};
  detach_locked();
  base_ = reinterpret_cast<std::uintptr_t>(base);
  bytes_ = bytes;
  known.by_base.insert_or_assign(base_, this);
}

void StaleViews::detach(void* base) noexcept {
  SpinGuard const held{registry().lock};
  if (base_ == reinterpret_cast<std::uintptr_t>(base)) detach_locked();
}

void StaleViews::detach_locked() noexcept {
  if (base_ == 0) return;
  open_locked();
  registry().by_base.erase(base_);
  base_ = 0;
}

void StaleViews::open() noexcept {
  SpinGuard const held{registry().lock};
  open_locked();
}

void StaleViews::open_locked() noexcept {
  if (!closed_.empty()) {
    // In one step from the first to the last: what lies between is accessible already.
    auto const begin = closed_.ranges().front().begin, end = closed_.ranges().back().end;
    static_cast<void>(mprotect(reinterpret_cast<void*>(base_ + begin), end - begin, PROT_READ | PROT_WRITE));
  }
  closed_.clear();
  wanted_.clear();
  behind_.clear();
}

void StaleViews::close(ByteRanges const& stale, std::vector<Event> behind) {
  auto const page = PageWatch::page_bytes();
  ByteRanges pages;
  for (auto const range : stale.ranges()) {
    auto const begin = (range.begin + page - 1) / page * page;
    auto const end = range.end == bytes_ ? (range.end + page - 1) / page * page : range.end / page * page;
    if (begin < end) pages.add({begin, end});
  }
  if (pages.empty() || !handles()) return;
  SpinGuard const held{registry().lock};
  if (base_ == 0) return;
  wanted_ = std::move(pages);
  behind_ = std::move(behind);
  close_if_done_locked();
}

void StaleViews::close_if_done() noexcept {
  SpinGuard const held{registry().lock};
  close_if_done_locked();
}

void StaleViews::close_if_done_locked() noexcept {
  if (base_ == 0 || wanted_.empty() || !std::ranges::all_of(behind_, &Event::ready)) return;
  closed_ = std::exchange(wanted_, {});
  behind_.clear();
  for (auto const range : closed_.ranges()) {
    // Refused where the process has too many mappings: then an access there goes unseen, and nothing else.
    static_cast<void>(mprotect(reinterpret_cast<void*>(base_ + range.begin), range.size(), PROT_NONE));
  }
}

auto StaleViews::open_at(std::uintptr_t address) -> Found {
  Found found;
  auto& known = registry();
  SpinGuard const held{known.lock};
  auto after = known.by_base.upper_bound(address);
  if (after == known.by_base.begin()) return found;
  auto& views = *std::prev(after)->second;
  auto const offset = address - views.base_;
  auto const page = PageWatch::page_bytes();
  if (offset >= (views.bytes_ + page - 1) / page * page) return found;
  found.ours = true;
  auto const stale = views.closed_.find(offset);
  if (!stale || stale->begin > offset) return found;  // another thread was first
  found.report = true;
  found.name = views.name_;
  found.byte = offset;
  found.stale = {stale->begin, std::min(stale->end, views.bytes_)};
  views.open_locked();
  return found;
}

}  // namespace unimem::detail
