#pragma once

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <optional>

namespace unimem::testing {

/// Counts the instructions that a piece of this thread takes, one by one: a figure that does not depend on what else
/// the machine is doing, and needs no counter of the processor's. A process of its own steps through it, so it is slow;
/// what the kernel does in a system call counts as one.
class InstructionCounter {
 public:
  /// The instructions of `work`; nothing where a process may not be traced, or this is no x86-64.
  template <class Work>
  [[nodiscard]] static std::optional<std::uint64_t> count(Work const& work) {
    auto const nothing = raw_count([] {});
    auto const all = raw_count(work);
    if (!nothing || !all) return std::nullopt;
    return *all - *nothing;
  }

 private:
  template <class Work>
  [[gnu::noinline]] static std::optional<std::uint64_t> raw_count(Work const& work) {
#if defined(__x86_64__)
    std::array<int, 2> ready{}, go{};
    if (::pipe(ready.data()) != 0 || ::pipe(go.data()) != 0) return std::nullopt;
    auto const thread = ::gettid();
    auto const tracer = ::fork();
    if (tracer == 0) trace(thread, go[0], ready[1]);
    ::prctl(PR_SET_PTRACER, tracer, 0, 0, 0);
    char attached = 1;
    std::uint64_t instructions = 0;
    bool counted =
        tracer > 0 && ::write(go[1], &attached, 1) == 1 && ::read(ready[0], &attached, 1) == 1 && attached == 1;
    if (counted) {
      asm volatile("int3" : : : "memory");
      work();
      asm volatile("int3" : : : "memory");
      counted = ::read(ready[0], &instructions, sizeof instructions) == sizeof instructions;
    }
    if (tracer > 0) ::waitpid(tracer, nullptr, 0);
    for (int const end : {ready[0], ready[1], go[0], go[1]}) ::close(end);
    if (counted) return instructions;
#else
    static_cast<void>(work);
#endif
    return std::nullopt;
  }

  /// What the tracing process does: waits for the first breakpoint, steps to the second, tells the number of steps.
  [[noreturn]] static void trace(pid_t thread, int go, int ready) {
    char attached = 0;
    static_cast<void>(!::read(go, &attached, 1));
    attached = ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 ? 1 : 0;
    static_cast<void>(!::write(ready, &attached, 1));
    std::uint64_t steps = 0;
    for (int breakpoints = 0; attached == 1 && breakpoints < 2;) {
      int status = 0;
      if (::waitpid(thread, &status, __WALL) < 0 || !WIFSTOPPED(status)) ::_exit(1);
      siginfo_t signal{};
      ::ptrace(PTRACE_GETSIGINFO, thread, nullptr, &signal);
      auto const number = WSTOPSIG(status);
      bool const trap = number == SIGTRAP;
      bool const breakpoint = trap && signal.si_code == SI_KERNEL;
      if (breakpoint) ++breakpoints;
      if (trap && !breakpoint) ++steps;
      // Another signal is none of ours, and passed on.
      auto const resume = breakpoints == 1 ? PTRACE_SINGLESTEP : breakpoints == 2 ? PTRACE_DETACH : PTRACE_CONT;
      ::ptrace(resume, thread, nullptr, trap ? 0 : number);
    }
    static_cast<void>(!::write(ready, &steps, sizeof steps));
    ::_exit(0);
  }
};

}  // namespace unimem::testing
