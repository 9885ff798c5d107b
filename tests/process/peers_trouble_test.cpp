#include <unimem/core/error.hpp>

#include "process/peers.hpp"
#include "process/peers_protocol.hpp"
#include "process/segment.hpp"

#include "forked_child.hpp"
#include "peer_processes.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Processes that answer badly, late or never, and many at once.

namespace unimem::testing {
namespace {

using detail::Peers;
using detail::Segment;
using detail::UniqueFd;
using detail::peers::Answer;
using detail::peers::Entry;
using detail::peers::Request;
using Clock = std::chrono::steady_clock;

/// What stalled processes may cost all together: one after the other, ten of them take twice this long.
constexpr auto bound = 5 * Peers::patience;

std::string bytes_of(auto const& value) {
  return {reinterpret_cast<char const*>(&value), sizeof value};
}

/// A process, as others see it, which answers as it likes.
class Fake {
 public:
  using Answers = std::function<void(int connection, Request const&)>;
  explicit Fake(Answers answers, std::string const& name = "fake")
      : socket_(listen_as(fmt::format("unimem-1-{}-1-{}", ::geteuid(), name))),
        thread_([this, answers = std::move(answers)] {
          for (;;) {
            UniqueFd const connection{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
            if (!connection) return;
            Request request;
            while (::recv(connection.get(), &request, sizeof request, 0) == sizeof request) {
              answers(connection.get(), request);
            }
          }
        }) {}
  Fake(Fake const&) = delete;
  Fake& operator=(Fake const&) = delete;
  ~Fake() { ::shutdown(socket_.get(), SHUT_RDWR); }

 private:
  UniqueFd socket_;
  std::jthread thread_;
};

/// Answers with these bytes, whatever it is asked.
Fake::Answers says(std::string bytes) {
  return [bytes = std::move(bytes)](int connection, Request const&) {
    static_cast<void>(::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  };
}

/// What a fetch of what no process has throws; 0: nothing.
int code_of_a_fetch() {
  try {
    EXPECT_FALSE(Peers::fetch({1, 2}));
  } catch (IoError const& error) {
    EXPECT_NE(std::string(error.what()).find("@unimem-1-"), std::string::npos) << error.what();
    return error.code;
  }
  return 0;
}

TEST(PeersInTrouble, APeerThatDoesNotAnswerIsNotWaitedForForEver) {
  auto const stuck = listen_as(fmt::format("unimem-1-{}-1-stuck", ::geteuid()));
  EXPECT_EQ(code_of_a_fetch(), ETIMEDOUT);
  int asked = 0;
  EXPECT_THROW(static_cast<void>(Peers::fetch({1, 2},
                                              [&] {
                                                if (++asked == 3) throw std::runtime_error("enough");
                                              })),
               std::runtime_error);
  Peers peers;
  peers.offer({1, 2}, {}, "here");
  auto const began = Clock::now();
  EXPECT_EQ(Peers::fetch({1, 2}).value().bytes, "here") << "another one has it";
  EXPECT_LT(Clock::now() - began, Peers::patience) << "the first good answer is enough";
}

TEST(PeersInTrouble, TenStoppedProcessesAreWaitedForAtTheSameTime) {
  std::deque<Staying> stopped;
  for (int i = 0; i < 10; ++i) {
    stopped.emplace_back([&] { Peers::of_this_process().offer({7, 7}, {}, "stopped"); });
    stopped.back().stop();
  }
  auto began = Clock::now();
  EXPECT_EQ(code_of_a_fetch(), ETIMEDOUT);
  EXPECT_LT(Clock::now() - began, bound);
  Peers peers;
  peers.offer({1, 2}, {}, "here");
  std::vector<std::string> unanswered;
  int asked = 0;
  began = Clock::now();
  auto const found = Peers::list([&] { ++asked; }, &unanswered);
  EXPECT_LT(Clock::now() - began, bound);
  EXPECT_GE(asked, 3) << "it can be ended";
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].bytes, "here");
  EXPECT_EQ(unanswered.size(), 10U);
  for (auto const& one : stopped) {
    auto const its = fmt::format("@unimem-1-{}-{}-", ::geteuid(), one.pid());
    EXPECT_TRUE(std::ranges::any_of(unanswered, [&](auto const& text) { return text.find(its) != std::string::npos; }));
  }
}

TEST(PeersInTrouble, WhatAnswersInAnotherLanguageIsNotBelieved) {
  Answer const good{.found = 1};
  Answer other_version = good, other_kind = good, two = good, descriptors = good, not_understood = good;
  other_version.magic.back() = '9';
  other_kind.kind = Answer::listed;
  two.found = 2;
  descriptors.descriptors = 1;
  not_understood.kind = Answer::not_understood;
  std::vector<std::string> const odd{
      "g",
      std::string(8, 'g'),
      std::string(sizeof good, 'g'),
      std::string(4'096, 'g'),
      bytes_of(good).substr(0, 8),
      bytes_of(good).substr(0, sizeof good - 1),
      bytes_of(other_version),
      bytes_of(other_kind),
      bytes_of(two),
      bytes_of(descriptors),
      bytes_of(not_understood),
      bytes_of(good) + std::string(detail::peers::most_payload + 1, 'x'),
  };
  auto const before = open_descriptors();
  for (auto const& answer : odd) {
    SCOPED_TRACE(&answer - odd.data());
    Fake const fake(says(answer));
    EXPECT_EQ(code_of_a_fetch(), EPROTO);
    std::vector<std::string> unanswered;
    EXPECT_TRUE(Peers::list({}, &unanswered).empty());
    EXPECT_EQ(unanswered.size(), 1U);
  }
  EXPECT_EQ(open_descriptors(), before);
  Fake const closes([](int connection, Request const&) { ::shutdown(connection, SHUT_RDWR); });
  EXPECT_FALSE(Peers::fetch({1, 2})) << "it is gone";
  EXPECT_TRUE(Peers::list().empty());
}

TEST(PeersInTrouble, WhatOneCannotSendIsNotTakenForMissing) {
  Fake const fake(says(bytes_of(Answer{.kind = Answer::cannot, .found = EMFILE})));
  EXPECT_EQ(code_of_a_fetch(), EREMOTEIO) << "not for want of descriptors here";
}

TEST(PeersInTrouble, AServerTellsThoseWhoSpeakOtherwise) {
  Peers peers;
  peers.offer({1, 2}, {}, "here");
  auto const prefix = fmt::format("@unimem-1-{}-{}-", ::geteuid(), ::getpid());
  std::ifstream sockets("/proc/net/unix");
  std::string name;
  for (std::string line; std::getline(sockets, line);) {
    if (auto const at = line.find(prefix); at != std::string::npos) name = line.substr(at + 1);
  }
  ASSERT_FALSE(name.empty());
  Request older, unknown;
  older.magic.back() = '1';
  unknown.kind = 77;
  for (auto const& request : {bytes_of(older), bytes_of(unknown), std::string("what?"), std::string(200, 'x')}) {
    UniqueFd const client{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    auto const address = detail::peers::address_of(name);
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<::sockaddr const*>(&address.where), address.length), 0);
    ASSERT_GT(::send(client.get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    Answer answer;
    ASSERT_EQ(::recv(client.get(), &answer, sizeof answer, 0), static_cast<::ssize_t>(sizeof answer));
    EXPECT_EQ(answer.magic, detail::peers::language);
    EXPECT_EQ(answer.kind, Answer::not_understood);
    EXPECT_EQ(::recv(client.get(), &answer, sizeof answer, 0), 0) << "it hangs up";
  }
}

/// Sends an answer with so many descriptors, and says that there are as many.
void send_descriptors(int connection, std::size_t count, std::uint32_t told) {
  Answer const answer{.found = 1, .descriptors = told};
  ::iovec part{const_cast<Answer*>(&answer), sizeof answer};
  std::vector<std::byte> control(CMSG_SPACE(count * sizeof(int)));
  ::msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::vector<int> const numbers(count, connection);
  std::memcpy(CMSG_DATA(header), numbers.data(), count * sizeof(int));
  static_cast<void>(::sendmsg(connection, &message, MSG_NOSIGNAL));
}

TEST(PeersInTrouble, TooManyDescriptorsAreRefusedAndClosed) {
  auto const before = open_descriptors();
  for (std::size_t const count : {1U, 4U, 5U, 8U, 9U, 50U, 253U}) {
    SCOPED_TRACE(count);
    for (bool const lies : {false, true}) {
      auto const told = lies ? 3U : static_cast<std::uint32_t>(count);
      Fake const fake([&](int connection, Request const&) { send_descriptors(connection, count, told); });
      if (count <= Peers::most_descriptors && !lies) {
        EXPECT_EQ(Peers::fetch({1, 2}).value().descriptors.size(), count);
      } else {
        EXPECT_EQ(code_of_a_fetch(), EPROTO);
      }
      EXPECT_TRUE(Peers::list().empty());
    }
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST(PeersInTrouble, WithFewDescriptorsManyProcessesAreAskedOneByOne) {
  std::deque<Staying> others;
  for (std::uint64_t i = 0; i < 20; ++i) {
    others.emplace_back([i] {
      auto const segment = Segment::make("test", 4'096);
      Peers::of_this_process().offer({8, i}, one_of(segment), std::to_string(i));
    });
  }
  EXPECT_EQ(in_child([] {
              auto const left = static_cast<::rlim_t>(open_descriptors() + 3);
              ::rlimit const limit{left, left};
              EXPECT_HERE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
              for (std::uint64_t i = 0; i < 20; ++i) {
                auto const found = Peers::fetch({8, i});
                EXPECT_HERE(found && found->bytes == std::to_string(i) && found->descriptors.size() == 1);
              }
              std::vector<std::string> unanswered;
              EXPECT_HERE(Peers::list({}, &unanswered).size() == 20 && unanswered.empty());
              return 0;
            }),
            0);
}

TEST(PeersInTrouble, AServerWithoutDescriptorsIsNotWaitedForForEver) {
  Staying const poor([] {
    auto const segment = Segment::make("test", 4'096);
    Peers::of_this_process().offer({1, 2}, one_of(segment), "poor");
    ::rlimit const limit{3, 3};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("no limit");
  });
  auto const began = Clock::now();
  EXPECT_EQ(code_of_a_fetch(), ETIMEDOUT);
  EXPECT_LT(Clock::now() - began, bound);
  Staying const rich([] { Peers::of_this_process().offer({1, 2}, {}, "rich"); });
  EXPECT_EQ(Peers::fetch({1, 2}).value().bytes, "rich");
}

TEST(PeersInTrouble, AListThatIsNoneIsNotBelieved) {
  Entry const first{{1, 1}, 2}, second{{1, 2}, 2};
  auto const head = [](std::uint32_t found, std::uint32_t more) {
    return bytes_of(Answer{.kind = Answer::listed, .found = found, .more = more});
  };
  auto const good = head(2, 0) + bytes_of(first) + "ab" + bytes_of(second) + "cd";
  {
    Fake const fake(says(good));
    auto const found = Peers::list();
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[1].key, (Peers::Key{1, 2}));
    EXPECT_EQ(found[1].bytes, "cd");
  }
  Entry const endless{{1, 3}, UINT64_MAX};
  for (auto const& odd : {head(3, 0) + good.substr(sizeof(Answer)),                                     // fewer
                          head(1, 0) + good.substr(sizeof(Answer)),                                     // more
                          good.substr(0, good.size() - 1),                                              // cut off
                          head(0, 1),                                                                   // no end
                          head(2, 0) + bytes_of(second) + "cd" + bytes_of(first) + "ab",                // no order
                          head(2, 0) + bytes_of(first) + "ab" + bytes_of(first) + "ab",                 // twice
                          head(1, 0) + bytes_of(endless), head(2, 1) + good.substr(sizeof(Answer))}) {  // again
    Fake const fake(says(odd));
    std::vector<std::string> unanswered;
    static_cast<void>(Peers::list({}, &unanswered));
    EXPECT_EQ(unanswered.size(), 1U);
  }
}

TEST(PeersInTrouble, AListWithoutAnEndComesToOne) {
  std::uint64_t pages = 0;
  Fake const fake([&](int connection, Request const&) {
    Entry const entry{{1, ++pages}, Peers::most_bytes};
    auto const page = bytes_of(Answer{.kind = Answer::listed, .found = 1, .more = 1}) + bytes_of(entry) +
                      std::string(Peers::most_bytes, 'x');
    static_cast<void>(::send(connection, page.data(), page.size(), MSG_NOSIGNAL));
  });
  std::vector<std::string> unanswered;
  auto const found = Peers::list({}, &unanswered);
  EXPECT_LE(found.size(), 2'048U);
  EXPECT_EQ(unanswered.size(), 1U);
}

}  // namespace
}  // namespace unimem::testing
