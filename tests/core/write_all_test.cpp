#include "core/write_all.hpp"
#include "core/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

namespace unimem::detail {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category());
    reading = UniqueFd{ends[0]};
    writing = UniqueFd{ends[1]};
  }

  UniqueFd reading, writing;
};

TEST(WriteAll, ArrivesWholeThoughSignalsCutItToPieces) {
  // Without SA_RESTART a write that waits for room returns what it has written so far, or EINTR.
  struct sigaction before{}, interrupt{};
  interrupt.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &interrupt, &before), 0);
  Pipe pipe;
  std::string text;
  while (text.size() < (std::size_t{1} << 20)) text += std::to_string(text.size()) + ' ';
  std::atomic<bool> over{false};
  std::error_code problem;
  std::thread writer([&] {
    problem = write_all(pipe.writing.get(), text);
    pipe.writing = {};
    over = true;
  });
  std::string received;
  std::array<char, 1000> piece{};
  while (true) {
    if (!over) pthread_kill(writer.native_handle(), SIGUSR1);  // it is joined below, so there to be signalled
    auto const count = ::read(pipe.reading.get(), piece.data(), piece.size());
    if (count <= 0) break;
    received.append(piece.data(), static_cast<std::size_t>(count));
  }
  writer.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_FALSE(problem) << problem.message();
  EXPECT_TRUE(received == text) << received.size() << " bytes of " << text.size();
}

TEST(WriteAll, SaysWhyItCouldNot) {
  UniqueFd const full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  if (!full) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(write_all(full.get(), std::string_view("text")), std::errc::no_space_on_device);
  EXPECT_EQ(write_all(-1, std::string_view("text")), std::errc::bad_file_descriptor);
  EXPECT_FALSE(write_all(-1, std::string_view{})) << "nothing is written anywhere";
}

}  // namespace
}  // namespace unimem::detail
