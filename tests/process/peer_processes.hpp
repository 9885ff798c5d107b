#pragma once

#include "process/peers.hpp"
#include "process/segment.hpp"

#include "forked_child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

// Processes that offer things, or only pretend to.

namespace unimem::testing {

/// Processes are found by sockets that all of a network namespace see: where it may, this program has one of its own,
/// so that what else runs on the machine is not found.
class OwnNetwork : public ::testing::Environment {
 public:
  void SetUp() override { static_cast<void>(::unshare(CLONE_NEWNET)); }
};
inline auto* const own_network = ::testing::AddGlobalTestEnvironment(new OwnNetwork);  // GoogleTest's from now on

inline std::vector<detail::UniqueFd> one_of(detail::Segment const& segment) {
  std::vector<detail::UniqueFd> all;
  all.emplace_back(::fcntl(segment.descriptor(), F_DUPFD_CLOEXEC, 0));
  return all;
}

/// Names of sockets of ours that there are.
inline std::size_t sockets_there() {
  std::ifstream sockets("/proc/net/unix");
  std::size_t count = 0;
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(fmt::format("@unimem-1-{}-", ::geteuid())) != std::string::npos) ++count;
  }
  return count;
}

/// A child that does something, and stays until it is killed.
class Staying {
 public:
  explicit Staying(std::function<void()> const& work) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    child_ = fork_while_others_sleep();
    if (child_ == 0) {
      try {
        work();
        static_cast<void>(::write(ends[1], "x", 1));
      } catch (std::exception const& error) {
        std::fprintf(stderr, "in the child: %s\n", error.what());
      }
      for (;;) ::pause();
    }
    ::close(ends[1]);  // so that a child that ends is not waited for
    char done = 0;
    EXPECT_EQ(::read(ends[0], &done, 1), 1);
    ::close(ends[0]);
  }
  Staying(Staying const&) = delete;
  Staying& operator=(Staying const&) = delete;
  ~Staying() { kill(); }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  void stop() const {
    ::kill(child_, SIGSTOP);
    ::waitpid(child_, nullptr, WUNTRACED);
  }
  [[nodiscard]] std::uint32_t pid() const { return static_cast<std::uint32_t>(child_); }

 private:
  ::pid_t child_ = 0;
};

/// A socket of that name, which is listened on.
inline detail::UniqueFd listen_as(std::string const& name) {
  detail::UniqueFd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  ::sockaddr_un where{};
  where.sun_family = AF_UNIX;
  std::memcpy(where.sun_path + 1, name.data(), name.size());
  auto const length = static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(made.get(), reinterpret_cast<::sockaddr const*>(&where), length), 0);
  EXPECT_EQ(::listen(made.get(), 8), 0);
  return made;
}

/// How many this process has open.
inline std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

}  // namespace unimem::testing
