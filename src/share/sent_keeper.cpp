#include <unimem/core/error.hpp>
#include <unimem/share/detail/sent_buffers.hpp>

#include "core/unique_fd.hpp"
#include "process/peers.hpp"
#include "process/shared_ranges.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <optional>
#include <span>
#include <thread>

// A process that offers what another has sent, which has ended.

namespace unimem::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds patience{10'000};

bool runs(RunningProcess const& one) {
  try {
    return SharedRanges::is_alive({one.pid, one.started});
  } catch (IoError const&) {
    return true;  // the system does not say now; it is asked again
  }
}

/// As many as the process that had them, whatever that was allowed when it opened them.
void open_all_that_may_be() {
  ::rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::optional<RunningProcess> running_process(std::uint32_t pid) {
  auto const found = SharedRanges::process(pid);
  if (!found) return std::nullopt;
  return RunningProcess{found->pid, found->started};
}

std::size_t hand_over_sent(int socket) {
  return Peers::of_this_process().hand_over(socket, patience);
}

void keep_sent(int socket, std::span<RunningProcess const> receivers) {
  ::prctl(PR_SET_NAME, "unimem keeper");
  ::sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  open_all_that_may_be();
  auto& peers = Peers::of_this_process();
  {
    UniqueFd const line{socket};
    peers.take_over(line.get(), patience);
  }
  // What is received at once ends it at once; what waits for an hour costs little.
  constexpr milliseconds longest{250};
  for (milliseconds pause{10}; peers.waiting().count != 0 && std::ranges::any_of(receivers, runs);
       pause = std::min(2 * pause, longest)) {
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace unimem::detail
