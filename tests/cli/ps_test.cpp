#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>

#include "cli/cli_process.hpp"
#include "cli/json_keys.hpp"
#include "plain_text.hpp"
#include "process/peers.hpp"
#include "processes/peer_process.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Other tests' processes may share buffers at the same time: each looks for its own.

namespace unimem {
namespace {

using detail::Peers;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::PeerProcess;
using ::testing::StartsWith;
using Byte = std::uint8_t;
using Json = nlohmann::ordered_json;

std::string comm_of(::pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
}

class Ps : public ::testing::Test {
 protected:
  static constexpr std::size_t size = 4096;

  static UnifiedBuffer<Byte> made(std::string name = {}) {
    BufferOptions options;
    options.shared = true;
    options.name = std::move(name);
    UnifiedBuffer<Byte> buffer(size, std::move(options));
    buffer.fill(1);
    return buffer;
  }
  static Json all() {
    auto const outcome = run_cli({"ps", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
    EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << "one object on one line";
    return Json::parse(outcome.out);
  }
  /// The one of this id; null: it is not listed.
  static Json buffer(std::string const& id) {
    Json found;
    auto const json = all();
    for (auto const& one : json["buffers"]) {
      if (one["id"] != id) continue;
      EXPECT_TRUE(found.is_null()) << "listed twice";
      found = one;
    }
    return found;
  }
  static Json holder(::pid_t pid, bool serves, std::size_t reading = 0, std::size_t writing = 0, bool alive = true) {
    Json json;
    json["pid"] = pid;
    json["command"] = comm_of(pid);
    json["alive"] = alive;
    json["serves"] = serves;
    json["reading_bytes"] = reading;
    json["writing_bytes"] = writing;
    return json;
  }
  static std::vector<Json> holders(std::map<::pid_t, Json> const& by_pid) {
    std::vector<Json> list;
    for (auto const& [pid, one] : by_pid) list.push_back(one);
    return list;
  }
  /// What is said of that id, from its line to the next buffer's.
  static std::string paragraph(std::string const& text, std::string const& id) {
    auto const begin = text.find(id);
    if (begin == std::string::npos) return {};
    auto end = begin;
    do {
      end = text.find('\n', end + 1);
    } while (end != std::string::npos && text.substr(end + 1, 2) == "  ");
    return text.substr(begin, end == std::string::npos ? end : end - begin);
  }

  BufferRegistry shared;
};

TEST_F(Ps, SaysThatNothingIsShared) {
  // Of another user, of whom no other test is.
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto const text = run_cli({"ps"}, {.ordinary_user = true});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.out, "nothing is shared\n");
  EXPECT_THAT(text.err, IsEmpty());
  auto const json = run_cli({"ps", "--json"}, {.ordinary_user = true});
  EXPECT_EQ(json.out, R"({"buffers":[],"sent":[],"unanswered":[]})"
                      "\n");
}

TEST_F(Ps, TellsWhoHoldsWhat) {
  PeerProcess one, other;
  auto const published = one.ask("publish 4096 1");
  ASSERT_THAT(published, StartsWith("ok "));
  auto const id = published.substr(3);
  auto found = buffer(id);
  EXPECT_THAT(keys_of(found), ElementsAre("id", "name", "buffer", "element", "element_bytes", "shape", "bytes",
                                          "holders", "lost_bytes", "trouble"));
  EXPECT_THAT(keys_of(all()), ElementsAre("buffers", "sent", "unanswered"));
  EXPECT_EQ(found["name"], "");
  EXPECT_EQ(found["element"], "unsigned char");
  EXPECT_EQ(found["element_bytes"], 1);
  EXPECT_EQ(found["shape"], Json::array({4096}));
  EXPECT_EQ(found["bytes"], 4096);
  EXPECT_EQ(found["lost_bytes"], 0);
  EXPECT_TRUE(found["trouble"].is_null());
  EXPECT_EQ(found["holders"], Json(holders({{one.pid(), holder(one.pid(), true)}})));

  ASSERT_EQ(other.ask("open " + id), "ok 4096");
  ASSERT_EQ(other.ask("hold 0 100"), "ok");
  ASSERT_THAT(one.ask("map_as read_write 1000 24"), StartsWith("ok"));
  std::map<::pid_t, Json> both{{one.pid(), holder(one.pid(), true, 0, 24)},
                               {other.pid(), holder(other.pid(), true, 100)}};
  EXPECT_EQ(buffer(id)["holders"], Json(holders(both)));
  auto const text = paragraph(run_cli({"ps"}).out, id);
  EXPECT_THAT(text, StartsWith(id + ": 4 KiB, 4096 of unsigned char\n"));
  EXPECT_THAT(text, HasSubstr(fmt::format("  {:<8} {:<16} serves it, writes 24 B", one.pid(), comm_of(one.pid()))));
  EXPECT_THAT(text, HasSubstr(fmt::format("  {:<8} {:<16} serves it, reads 100 B", other.pid(), comm_of(other.pid()))));

  ASSERT_EQ(one.ask("unmap"), "ok");
  ASSERT_EQ(other.ask("close"), "ok");
  EXPECT_EQ(buffer(id)["holders"], Json(holders({{one.pid(), holder(one.pid(), true)}})));
  ASSERT_EQ(one.ask("close"), "ok");
}

TEST_F(Ps, TellsOfAWriterThatWasKilledAndOfWhatIsLost) {
  auto memory = made("pixels");
  auto const id = shared.publish(memory, {.name = "frame", .cross_process = true});
  auto const text = to_string(id);
  PeerProcess peer;
  auto const pid = peer.pid();
  ASSERT_EQ(peer.ask("open " + text), "ok 4096");
  ASSERT_THAT(peer.ask("map_as read_write 10 90"), StartsWith("ok"));
  peer.kill();
  auto found = buffer(text);
  EXPECT_EQ(found["name"], "frame");
  EXPECT_EQ(found["buffer"], "pixels");
  EXPECT_EQ(found["lost_bytes"], 0) << "it only looks";
  std::map<::pid_t, Json> both{{::getpid(), holder(::getpid(), true)}, {pid, holder(pid, false, 0, 90, false)}};
  EXPECT_EQ(found["holders"], Json(holders(both)));
  EXPECT_THROW(static_cast<void>(memory.to_vector()), DataLost);
  found = buffer(text);
  EXPECT_EQ(found["lost_bytes"], 90);
  EXPECT_EQ(found["holders"], Json(holders({{::getpid(), holder(::getpid(), true)}})));
  EXPECT_THAT(paragraph(run_cli({"ps"}).out, text),
              HasSubstr("90 B lost with a process that ended while it was writing"));
}

TEST_F(Ps, TellsWhatIsOnItsWayAndLeavesItThere) {
  UnifiedBuffer<Byte> plain(size);
  plain.fill(7);
  auto both = made();
  auto const core = plain.shared_core();
  auto const copies = {detail::send_copy(*core, {0, size}), detail::send_copy(*core, {0, 100})};
  auto const same = detail::send_shared(both.shared_core());
  auto const own = [] {
    auto const json = all();
    for (auto const& one : json["sent"]) {
      if (one["pid"] == ::getpid()) return one;
    }
    return Json();
  };
  for (int i = 0; i < 2; ++i) {
    auto const sent = own();
    EXPECT_THAT(keys_of(sent), ElementsAre("pid", "command", "copies", "copied_bytes", "shared", "shared_bytes"));
    EXPECT_EQ(sent["command"], comm_of(::getpid()));
    EXPECT_EQ(sent["copies"], 2);
    EXPECT_EQ(sent["copied_bytes"], size + 100);
    EXPECT_EQ(sent["shared"], 1);
    EXPECT_EQ(sent["shared_bytes"], size);
  }
  auto const line = fmt::format("sent by {} {} and not received: 2 copies (4.10 KiB), 1 shared (4 KiB)\n", ::getpid(),
                                comm_of(::getpid()));
  EXPECT_THAT(run_cli({"ps"}).out, HasSubstr(line));
  EXPECT_EQ(detail::sent_and_not_received().buffers, 3);
  auto const got = detail::receive_sent(*copies.begin(), size, {});
  UnifiedBuffer<Byte> const received(Shape(size), got);
  EXPECT_EQ(received.to_vector(), std::vector<Byte>(size, 7));
  EXPECT_EQ(own()["copies"], 1);
  static_cast<void>(detail::receive_sent(*(copies.begin() + 1), 100, {}));
  static_cast<void>(detail::receive_sent(same, size, {}));
  EXPECT_TRUE(own().is_null());
}

TEST_F(Ps, NamesWhatDoesNotAnswerInTime) {
  PeerProcess stopped;
  auto const published = stopped.ask("publish 4096 1");
  stopped.stop();
  auto const begin = std::chrono::steady_clock::now();
  auto const json = all();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, Peers::patience);
  stopped.go_on();
  std::string said;
  for (auto const& one : json["unanswered"]) said += one.get<std::string>() + '\n';
  EXPECT_THAT(said, HasSubstr(fmt::format("@unimem-1-{}-{}-", ::geteuid(), stopped.pid())));
  EXPECT_THAT(said, HasSubstr("does not answer"));
  EXPECT_EQ(buffer(published.substr(3))["bytes"], 4096);
}

TEST_F(Ps, EndsAtCtrlCWhileItWaits) {
  PeerProcess stopped;
  ASSERT_THAT(stopped.ask("publish 4096 1"), StartsWith("ok"));
  stopped.stop();
  CliProcess ps({"ps"});
  auto const is_asking = [&] {
    std::ifstream sockets(fmt::format("/proc/{}/net/unix", ps.id()));
    std::ifstream state(fmt::format("/proc/{}/wchan", ps.id()));
    std::string where;
    state >> where;
    return where.find("poll") != std::string::npos;
  };
  static_cast<void>(reaches(ps, is_asking, std::chrono::seconds(1)));  // where the system tells
  ps.send(SIGINT);
  auto const outcome = ps.wait();
  stopped.go_on();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.out, IsEmpty());
}

TEST_F(Ps, QuotesWhateverOthersCallTheirBuffers) {
  auto memory = made("a\nb\x1b[2J\xff\\\xe2\x80\xae");
  auto const id = to_string(shared.publish(memory, {.name = "\xc3\xa4\t\x9b"
                                                            "31m",
                                                    .cross_process = true}));
  auto const found = buffer(id);
  EXPECT_EQ(found["buffer"], "a\nb\x1b[2J\xef\xbf\xbd\\\xe2\x80\xae") << "U+FFFD for what is no UTF-8";
  EXPECT_EQ(found["name"],
            "\xc3\xa4\t\xef\xbf\xbd"
            "31m");
  auto const text = run_cli({"ps"}).out;
  EXPECT_THAT(text, HasSubstr(id + " '\xc3\xa4\\x09\\x9b31m', buffer 'a\\x0ab\\x1b[2J\\xff\\x5c\\xe2\\x80\\xae': "));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(Ps, NamesWhatIsOddlyOffered) {
  auto& peers = Peers::of_this_process();
  Peers::Key const nonsense{7, 1}, bare{7, 2};
  peers.offer(nonsense, {}, "no description\n");
  auto memory = made();
  auto const id = shared.publish(memory, {.cross_process = true});
  std::string described;
  for (auto const& one : Peers::list()) {
    if (one.key == Peers::Key{id.registry, id.number}) described = one.bytes;
  }
  peers.offer(bare, {}, described);
  auto const json = all();
  std::string said;
  for (auto const& one : json["unanswered"]) said += one.get<std::string>() + '\n';
  EXPECT_THAT(said, HasSubstr(fmt::format("process {}: what it tells of a buffer is no description", ::getpid())));
  auto const found = buffer(to_string(BufferId{bare.registry, bare.number}));
  EXPECT_THAT(found["trouble"], HasSubstr("sent 0 descriptors instead of 2"));
  EXPECT_EQ(found["holders"], Json(holders({{::getpid(), holder(::getpid(), true)}})));
  EXPECT_TRUE(buffer(to_string(id))["trouble"].is_null());
  peers.withdraw(nonsense);
  peers.withdraw(bare);
}

TEST(PlainText, IsOneLineOfWhatCanBeRead) {
  using cli::plain_text;
  EXPECT_EQ(plain_text(""), "");
  EXPECT_EQ(plain_text("frame 1 ~"), "frame 1 ~");
  EXPECT_EQ(plain_text("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(plain_text("a\\b"), "a\\x5cb");
  EXPECT_EQ(plain_text(std::string_view("\0\x7f\r", 3)), "\\x00\\x7f\\x0d");
  EXPECT_EQ(plain_text("\xc2\x9b"), "\\xc2\\x9b") << "a control character of two bytes";
  EXPECT_EQ(plain_text("\xc0\xaf\xe0\x80\xaf"), "\\xc0\\xaf\\xe0\\x80\\xaf") << "longer than it need be";
  EXPECT_EQ(plain_text("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(plain_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond what there is";
  EXPECT_EQ(plain_text("\xe2\x82"), "\\xe2\\x82") << "cut off";
}

}  // namespace
}  // namespace unimem
