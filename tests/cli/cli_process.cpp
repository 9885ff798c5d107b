#include "cli/cli_process.hpp"

#include "started_program.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace unimem {
namespace {

constexpr id_t nobody = 65534;

int checked(int result, char const* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

std::string contents_of(int memory_file) {
  std::string text;
  std::array<char, 64 * 1024> piece;
  ssize_t count = 0;
  while ((count = ::pread(memory_file, piece.data(), piece.size(), static_cast<off_t>(text.size()))) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return text;
}

/// Makes the system call that opens files refuse those without a name, for this process and what it becomes.
bool refuse_unnamed_files() {
  constexpr unsigned unnamed = O_TMPFILE & ~O_DIRECTORY;
  std::array<sock_filter, 6> program{
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
       BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t)),  // the flags
       BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, unnamed, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  sock_fprog const filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Between fork and exec. Ends with 126 when the surroundings cannot be had, which no test expects.
[[noreturn]] void become_cli(char const* path, char* const* arguments, Surroundings const& around, int out, int err) {
  auto const must = [](bool done) {
    if (!done) ::_exit(126);
  };
  // A test runner in the background may have left Ctrl-C ignored or blocked.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int const signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_DFL);
  for (int const signal : around.ignored_signals) std::signal(signal, SIG_IGN);

  // Opened by its descriptor: an ordinary user need not be able to reach the build folder. What starts is the command
  // line, or the emulator that runs it.
  int const program = ::open(path, O_RDONLY | O_CLOEXEC);
  must(program >= 0);
  if (!around.directory.empty()) must(::chdir(around.directory.c_str()) == 0);
  for (auto const& [name, value] : around.environment) must(::setenv(name.c_str(), value.c_str(), 1) == 0);
  must(::dup2(err, STDERR_FILENO) >= 0);
  if (around.standard_output_closed) {
    ::close(STDOUT_FILENO);
  } else {
    must(::dup2(out, STDOUT_FILENO) >= 0);
  }
  if (around.file_size_limit) {
    rlimit const limit{*around.file_size_limit, *around.file_size_limit};
    must(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  if (around.no_threads) {
    rlimit const limit{1, 1};
    must(::setrlimit(RLIMIT_NPROC, &limit) == 0);
  }
  if (around.ordinary_user && ::geteuid() == 0) {
    must(::setgroups(0, nullptr) == 0 && ::setgid(nobody) == 0 && ::setuid(nobody) == 0);
  }
  if (around.no_unnamed_files) must(refuse_unnamed_files());
  ::fexecve(program, arguments, environ);
  ::_exit(126);
}

}  // namespace

CliProcess::CliProcess(std::vector<std::string> const& arguments, Surroundings const& surroundings) {
  auto texts = testing::command_of(UNIMEM_CLI_PATH);
  auto const path = texts.front();
  if (texts.size() == 1) texts.front() = "unimem";
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);

  out_ = surroundings.standard_output.empty()
             ? checked(::memfd_create("out", MFD_CLOEXEC), "memfd_create")
             : checked(::open(surroundings.standard_output.c_str(), O_WRONLY | O_CLOEXEC), "open");
  int err = -1;
  if (surroundings.terminal_columns) {
    terminal_ = true;
    winsize size{.ws_row = 24, .ws_col = *surroundings.terminal_columns, .ws_xpixel = 0, .ws_ypixel = 0};
    checked(::openpty(&err_, &err, nullptr, nullptr, &size), "openpty");
    ::fcntl(err_, F_SETFD, FD_CLOEXEC);
    ::fcntl(err_, F_SETFL, O_NONBLOCK);
  } else {
    err_ = err = checked(::memfd_create("err", MFD_CLOEXEC), "memfd_create");
  }
  id_ = checked(::fork(), "fork");
  if (id_ == 0) become_cli(path.c_str(), pointers.data(), surroundings, out_, err);
  if (terminal_) ::close(err);
  // The system call itself: the declaration in glibc 2.36 forgets that C++ exists.
  end_ = checked(static_cast<int>(::syscall(SYS_pidfd_open, id_, 0)), "pidfd_open");
}

CliProcess::~CliProcess() {
  if (!reaped_) {
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
  for (int const descriptor : {end_, out_, err_}) ::close(descriptor);
}

void CliProcess::send(int signal) const {
  checked(::kill(id_, signal), "kill");
}

bool CliProcess::running() const {
  pollfd end{.fd = end_, .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 0) == 0;
}

std::size_t CliProcess::bytes_read() const {
  std::ifstream io("/proc/" + std::to_string(id_) + "/io");
  std::string key;
  std::size_t bytes = 0;
  io >> key >> bytes;
  return bytes;
}

bool CliProcess::writes_in(std::filesystem::path const& folder) const {
  std::error_code ended;
  for (auto const& open : std::filesystem::directory_iterator("/proc/" + std::to_string(id_) + "/fd", ended)) {
    auto const file = std::filesystem::read_symlink(open.path(), ended).native();
    bool const unfinished = file.ends_with(" (deleted)") || file.find(".unimem-") != std::string::npos;
    if (unfinished && file.starts_with(folder.native() + '/')) return true;
  }
  return false;
}

void CliProcess::read_terminal() {
  std::array<char, 4096> piece;
  ssize_t count = 0;
  while ((count = ::read(err_, piece.data(), piece.size())) > 0) {
    seen_.append(piece.data(), static_cast<std::size_t>(count));
  }
}

Outcome CliProcess::wait(std::chrono::seconds most) {
  Outcome outcome;
  auto const deadline = std::chrono::steady_clock::now() + most;
  while (true) {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      outcome.timed_out = true;
      ADD_FAILURE() << "still running after " << most.count() << " s";
      ::kill(id_, SIGKILL);
      break;
    }
    // Without a terminal only the end is waited for: poll() takes a negative descriptor for none.
    std::array<pollfd, 2> events{pollfd{.fd = end_, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = terminal_ ? err_ : -1, .events = POLLIN, .revents = 0}};
    if (::poll(events.data(), events.size(), static_cast<int>(left.count())) < 0) continue;
    if (terminal_) read_terminal();
    if (events[0].revents != 0) break;
    // The other side of a closed terminal reads as hung up for ever: from then on the end alone matters.
    if ((events[1].revents & POLLHUP) != 0) terminal_ = false;
  }
  int status = 0;
  rusage used{};
  ::wait4(id_, &status, 0, &used);
  reaped_ = true;
  outcome.peak_resident_bytes = static_cast<std::size_t>(used.ru_maxrss) * 1'024;
  outcome.ended_by_signal = WIFSIGNALED(status);
  outcome.exit_code = outcome.ended_by_signal ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.out = contents_of(out_);
  outcome.err = seen_.empty() ? contents_of(err_) : seen_;
  return outcome;
}

Outcome run_cli(std::vector<std::string> const& arguments, Surroundings const& surroundings) {
  return CliProcess(arguments, surroundings).wait();
}

std::vector<std::string> words_of(std::string const& command) {
  std::istringstream stream(command);
  return {std::istream_iterator<std::string>(stream), {}};
}

bool has_device(std::string const& id) {
  static auto const list = nlohmann::json::parse(run_cli({"devices"}).out);
  for (auto const& device : list["devices"]) {
    if (device["id"] == id) return true;
  }
  return false;
}

}  // namespace unimem
