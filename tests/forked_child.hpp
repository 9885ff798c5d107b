#pragma once

#include <unimem/core/error.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

// Children of a test's process that are forked without exec, as some users' programs fork.

namespace unimem {

inline bool is_child_of_a_test = false;

}  // namespace unimem

/// Asked by LeakSanitizer at the end of a process. In a child it would miss what only the threads of its parent held.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" [[gnu::used, gnu::visibility("default")]] inline int __lsan_is_turned_off() {
  return unimem::is_child_of_a_test ? 1 : 0;
}

namespace unimem {

/// Whether every other thread of this process sleeps, and so holds no lock of the runtime's for a moment.
[[nodiscard]] inline bool other_threads_sleep() {
  auto const own = std::to_string(gettid());
  for (auto const& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == own) continue;
    std::ifstream file(thread.path() / "stat");
    std::string const text(std::istreambuf_iterator<char>(file), {});
    // "id (name) state …", and the name may hold anything.
    auto const state = text.rfind(") ");
    if (state != std::string::npos && text[state + 2] != 'S') return false;
  }
  return true;
}

/// `fork()` at a moment when no other thread is in the middle of something, waited for a second at most.
///
/// The library's locks do not need it, nor glibc's. But the sanitizers of GCC 12 do not see to theirs when a process
/// forks: a thread that is just starting or allocating leaves them locked in the child for good.
[[nodiscard]] inline pid_t fork_while_others_sleep() {
  using namespace std::chrono_literals;
  auto const deadline = std::chrono::steady_clock::now() + 1s;
  for (int asleep = 0; asleep < 3 && std::chrono::steady_clock::now() < deadline;) {
    asleep = other_threads_sleep() ? asleep + 1 : 0;
    std::this_thread::sleep_for(1ms);
  }
  auto const child = fork();
  is_child_of_a_test = is_child_of_a_test || child == 0;
  return child;
}

/// How `child` ended: its exit code, or a signal's number below zero.
[[nodiscard]] inline int ending_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// How the child ended that did `work` and then left by `leave`: `_exit`, or `std::exit` as a program does. `child` is
/// what `fork()` has just returned, on either side.
template <class Work>
int ending_of(pid_t child, Work const& work, void (*leave)(int) = _exit) {
  if (child == 0) {
    alarm(30);  // a child that hangs is a failure, not a test that hangs
    int code = 1;
    try {
      code = work();
    } catch (std::exception const& error) {
      std::fputs(error.what(), stderr);
    }
    leave(code);
  }
  return ending_of(child);
}

/// How a forked child ended that did `work` and then left by `leave`.
template <class Work>
int in_child(Work const& work, void (*leave)(int) = _exit) {
  return ending_of(fork_while_others_sleep(), work, leave);
}

/// Whether a child is refused this, as what belongs to its parent.
template <class Operation>
[[nodiscard]] bool is_refused(Operation const& operation) {
  try {
    operation();
  } catch (UnsupportedOperation const& error) {
    return error.where == "a forked child process";
  }
  return false;
}

/// Fails with the line, in a child, where Google's assertions would go unheard.
#define EXPECT_HERE(condition) \
  if (!(condition)) return std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), 1

}  // namespace unimem
