#pragma once

#include "started_program.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace unimem::testing {

/// The program of peer.cpp as a process of its own, which ends with this.
class PeerProcess {
 public:
  /// No answer within this is a hang.
  static constexpr std::chrono::seconds patience{30};

  explicit PeerProcess(std::string const& program = UNIMEM_TEST_PEER) {
    std::array<int, 2> to{}, from{};
    if (::pipe2(to.data(), O_CLOEXEC) != 0 || ::pipe2(from.data(), O_CLOEXEC) != 0) throw_errno("pipe2");
    ::posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    auto command = command_of(program);
    std::vector<char*> arguments;
    for (auto& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    auto const failure = ::posix_spawn(&pid_, arguments.front(), &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(to[0]);
    ::close(from[1]);
    to_ = to[1];
    from_ = from[0];
    if (failure != 0) throw std::system_error(failure, std::generic_category(), program);
  }
  PeerProcess(PeerProcess const&) = delete;
  PeerProcess& operator=(PeerProcess const&) = delete;
  ~PeerProcess() {
    ::close(to_);  // it ends by itself, if it is still there
    if (pid_ > 0 && !ended_within(patience)) {
      ADD_FAILURE() << "a peer does not end";
      kill();
    }
    ::close(from_);
  }

  [[nodiscard]] ::pid_t pid() const noexcept { return pid_; }

  /// Does not wait for the answer.
  void tell(std::string line) const {
    line += '\n';
    for (std::string_view left = line; !left.empty();) {
      auto const written = ::write(to_, left.data(), left.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno("write");
      left.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  /// Whether it says something within that time.
  [[nodiscard]] bool answers_within(std::chrono::milliseconds time) const {
    if (buffered_.find('\n') != std::string::npos) return true;
    ::pollfd watched{from_, POLLIN, 0};
    return ::poll(&watched, 1, static_cast<int>(time.count())) > 0;
  }
  /// What it says next; throws if it says nothing in time, or has ended.
  [[nodiscard]] std::string answer() {
    auto const until = std::chrono::steady_clock::now() + patience;
    for (;;) {
      if (auto const end = buffered_.find('\n'); end != std::string::npos) {
        auto line = buffered_.substr(0, end);
        buffered_.erase(0, end + 1);
        return line;
      }
      if (!answers_within(std::chrono::milliseconds(100))) {
        if (std::chrono::steady_clock::now() > until) throw std::runtime_error("a peer hangs");
        continue;
      }
      std::array<char, 4096> some{};
      auto const got = ::read(from_, some.data(), some.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) throw std::runtime_error("a peer has ended");
      buffered_.append(some.data(), static_cast<std::size_t>(got));
    }
  }
  [[nodiscard]] std::string ask(std::string line) {
    tell(std::move(line));
    return answer();
  }

  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// Somebody has waited for its end.
  void has_ended() noexcept { pid_ = -1; }
  void stop() const { ::kill(pid_, SIGSTOP); }
  void go_on() const { ::kill(pid_, SIGCONT); }
  /// It was told to end by itself, or to kill itself.
  [[nodiscard]] bool ended_within(std::chrono::seconds time) {
    auto const until = std::chrono::steady_clock::now() + time;
    do {
      if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = -1;
        return true;
      }
      ::usleep(1'000);
    } while (std::chrono::steady_clock::now() < until);
    return false;
  }

 private:
  [[noreturn]] static void throw_errno(char const* what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  ::pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string buffered_;
};

}  // namespace unimem::testing
