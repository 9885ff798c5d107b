#include "device/opencl/probe.hpp"

#include "core/write_all.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>

namespace unimem::detail::opencl {
namespace {

// Each message of the child is one line: what it is about to do, or how it ended.
constexpr char step_mark = '>';
constexpr char end_mark = '=';

/// A file descriptor with one owner.
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  ~Descriptor() { close(); }

  [[nodiscard]] int get() const noexcept { return number_; }
  void close() noexcept {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

void send(int pipe, char mark, std::string text) {
  for (auto& letter : text)
    if (letter == '\n') letter = ' ';
  // NOLINTNEXTLINE(bugprone-unused-return-value): a parent that is gone hears of nothing
  static_cast<void>(write_all(pipe, fmt::format("{}{}\n", mark, text)));
}

[[noreturn]] void run_child(int pipe, std::function<std::string(Announce const&)> const& attempt) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a child that hangs does not outlive a parent that is killed
  rlimit const no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  for (auto const signal : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGTERM, SIGALRM}) std::signal(signal, SIG_DFL);
  auto const nowhere = ::open("/dev/null", O_WRONLY);
  if (nowhere >= 0) {
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
  }
  try {
    send(pipe, end_mark, attempt([pipe](std::string const& step) { send(pipe, step_mark, step); }));
  } catch (std::exception const& failure) {
    send(pipe, end_mark, failure.what());
  }
  _exit(0);
}

/// What has been heard of the child so far.
struct Report {
  std::string step = "starting";
  std::string ending;
  bool ended = false;

  void hear(std::string& pending) {
    for (auto line_end = pending.find('\n'); line_end != std::string::npos; line_end = pending.find('\n')) {
      (pending.front() == end_mark ? ending : step) = pending.substr(1, line_end - 1);
      ended = ended || pending.front() == end_mark;
      pending.erase(0, line_end + 1);
    }
  }
};

/// Reads what the pipe holds without waiting; false at its end.
bool read_some(int pipe, std::string& pending) {
  char chunk[512];
  for (;;) {
    auto const count = ::read(pipe, chunk, sizeof chunk);
    if (count > 0) {
      pending.append(chunk, static_cast<std::size_t>(count));
    } else if (count == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
}

std::string how_it_died(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by {}", strsignal(WTERMSIG(status)));
  if (WIFEXITED(status)) return fmt::format("ended the process with status {}", WEXITSTATUS(status));
  return "ended the process";
}

}  // namespace

std::string probe(std::function<std::string(Announce const&)> const& attempt, std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  auto const deadline = Clock::now() + patience;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fmt::format("the driver could not be probed: {}", std::strerror(errno));
  Descriptor reading{ends[0]}, writing{ends[1]};
  auto const child = fork();
  if (child < 0) return fmt::format("the driver could not be probed: {}", std::strerror(errno));
  if (child == 0) run_child(writing.get(), attempt);
  writing.close();
  fcntl(reading.get(), F_SETFL, O_NONBLOCK);
  // The pipe alone would not do: another thread's fork at this moment may keep its other end open after the child has
  // died.
  Descriptor const exited{static_cast<int>(syscall(SYS_pidfd_open, child, 0))};

  Report report;
  std::string pending;
  bool listening = true, timed_out = false;
  while (listening && !report.ended && !timed_out) {
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd sources[] = {{reading.get(), POLLIN, 0}, {exited.get(), POLLIN, 0}};
    auto const told = left <= 0 ? 0 : ::poll(sources, 2, static_cast<int>(left));
    if (told < 0 && errno == EINTR) continue;
    timed_out = told == 0;
    listening = read_some(reading.get(), pending) && sources[1].revents == 0;
    report.hear(pending);
  }

  if (!report.ended) kill(child, SIGKILL);
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = waitpid(child, &status, 0);
  } while (reaped < 0 && errno == EINTR);
  if (report.ended) return report.ending;
  if (timed_out) {
    return fmt::format("a driver did not answer within {} ms while {} (UNIMEM_OPENCL_PROBE=0 trusts it unseen)",
                       patience.count(), report.step);
  }
  // Where the application reaps every child itself, how this one died is not to be had.
  return fmt::format("a driver {} while {}", reaped == child ? how_it_died(status) : "ended the process", report.step);
}

}  // namespace unimem::detail::opencl
