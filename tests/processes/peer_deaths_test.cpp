#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>
#include <unimem/share/peer_death.hpp>

#include "buffer/buffer_fixture.hpp"
#include "processes/peer_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Who is told that a process has died with a buffer.

namespace unimem::testing {
namespace {

using std::chrono::milliseconds;
using Byte = std::uint8_t;

/// What a subscriber is told.
class Told {
 public:
  [[nodiscard]] PeerDeathCallback callback() {
    return [this](PeerDeath const& death) {
      std::scoped_lock const lock(mutex_);
      deaths_.push_back(death);
      came_.notify_all();
    };
  }
  /// Once there are so many; fails if they do not come.
  std::vector<PeerDeath> await(std::size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(came_.wait_for(lock, PeerProcess::patience, [&] { return deaths_.size() >= count; }))
        << deaths_.size() << " of " << count;
    return deaths_;
  }
  std::vector<PeerDeath> now() {
    std::scoped_lock const lock(mutex_);
    return deaths_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<PeerDeath> deaths_;
};

BufferId id_from(std::string const& text) {
  auto const dash = text.find('-');
  return {std::stoull(text.substr(0, dash), nullptr, 16), std::stoull(text.substr(dash + 1))};
}

std::size_t threads() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator()));
}

class PeerDeaths : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  UnifiedBuffer<Byte> made() {
    auto options = on_sim();
    options.shared = true;
    UnifiedBuffer<Byte> buffer(size, std::move(options));
    buffer.fill(1);
    return buffer;
  }
  BufferId published(UnifiedBuffer<Byte> const& buffer) { return shared.publish(buffer, {.cross_process = true}); }
  static void open(PeerProcess& peer, BufferId id) { ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096"); }

  /// All that has happened before has been told: what comes last is.
  void settle(Told& told) {
    auto buffer = made();
    PeerProcess last;
    open(last, published(buffer));
    auto const pid = static_cast<std::uint32_t>(last.pid());
    last.kill();
    auto const until = std::chrono::steady_clock::now() + PeerProcess::patience;
    auto const came = [&] {
      auto const all = told.now();
      return std::ranges::find(all, pid, &PeerDeath::pid) != all.end();
    };
    while (!came() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(came()) << "nothing is told";
  }

  BufferRegistry shared;
};

TEST_F(PeerDeaths, AreToldWithWhatIsLost) {
  auto buffer = made(), other = made();
  auto const id = published(buffer), again = published(buffer);
  static_cast<void>(published(other));
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  PeerProcess peer;
  auto const pid = static_cast<std::uint32_t>(peer.pid());
  open(peer, id);
  ASSERT_TRUE(peer.ask("map_as read_write 100 50").starts_with("ok"));
  peer.kill();
  auto const deaths = told.await(1);
  ASSERT_EQ(deaths.size(), 1U);
  EXPECT_EQ(deaths[0].pid, pid);
  EXPECT_EQ(deaths[0].buffers, (std::vector<BufferId>{id, again}));
  EXPECT_EQ(deaths[0].lost_bytes, 50U);
  EXPECT_THROW(static_cast<void>(buffer.slice(149, 1).to_vector()), DataLost);
  EXPECT_EQ(buffer.slice(150, 1).to_vector(), std::vector<Byte>{1});
}

TEST_F(PeerDeaths, AreToldOnceOfAllThatAProcessHeld) {
  auto one = made(), other = made();
  auto const first = published(one), second = published(other);
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  PeerProcess peer;
  open(peer, first);
  ASSERT_EQ(peer.ask("@1 open " + to_string(second)), "ok 4096");
  ASSERT_TRUE(peer.ask("map_as read_write 0 10").starts_with("ok"));
  ASSERT_TRUE(peer.ask("@1 map_as read_write 0 20").starts_with("ok"));
  peer.kill();
  settle(told);
  auto const deaths = told.now();
  ASSERT_EQ(deaths.size(), 2U);
  EXPECT_EQ(deaths[0].lost_bytes, 30U);
  auto ids = deaths[0].buffers;
  std::ranges::sort(ids);
  EXPECT_EQ(ids, (std::vector<BufferId>{first, second}));
}

TEST_F(PeerDeaths, AreToldByWhoeverFindsThem) {
  auto buffer = made();
  auto const id = published(buffer);
  PeerProcess peer, finder;
  open(peer, id);
  open(finder, id);
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  ASSERT_TRUE(peer.ask("map_as read_write 0 10").starts_with("ok"));
  auto const pid = static_cast<std::uint32_t>(peer.pid());
  peer.kill();
  EXPECT_TRUE(finder.ask("read 0 10").starts_with("error DataLost"));
  auto const deaths = told.await(1);
  EXPECT_EQ(deaths[0].pid, pid);
  EXPECT_EQ(deaths[0].lost_bytes, 10U);
  settle(told);
  EXPECT_EQ(told.now().size(), 2U) << "once";
}

TEST_F(PeerDeaths, AreNoOrderlyEnds) {
  auto buffer = made();
  auto const id = published(buffer);
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  std::optional<UnifiedBuffer<Byte>> opened;
  {
    PeerProcess closes, ends, exits, publishes;
    open(closes, id);
    ASSERT_EQ(closes.ask("close"), "ok");
    open(ends, id);  // by its main's end, with the buffer
    open(exits, id);
    exits.tell("exit_well");
    EXPECT_TRUE(exits.ended_within(PeerProcess::patience));
    // What it has published stays until the process ends.
    auto const answer = publishes.ask("publish 4096 1");
    ASSERT_TRUE(answer.starts_with("ok "));
    opened.emplace(shared.open<Byte>(id_from(answer.substr(3))));
    EXPECT_EQ(opened->size(), size);
  }
  settle(told);
  EXPECT_EQ(told.now().size(), 1U);
}

TEST_F(PeerDeaths, AreEndsWithoutAWord) {
  auto buffer = made();
  auto const id = published(buffer);
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  PeerProcess at_once, in_a_write;
  std::vector<std::uint32_t> pids;
  for (auto* const peer : {&at_once, &in_a_write}) {
    open(*peer, id);
    pids.push_back(static_cast<std::uint32_t>(peer->pid()));
  }
  ASSERT_TRUE(in_a_write.ask("map_as read_write 0 10").starts_with("ok"));
  at_once.tell("exit_at_once");
  in_a_write.tell("exit_well");
  auto deaths = told.await(2);
  EXPECT_TRUE(at_once.ended_within(PeerProcess::patience));
  EXPECT_TRUE(in_a_write.ended_within(PeerProcess::patience));
  std::ranges::sort(deaths, {}, [&](PeerDeath const& death) { return death.pid == pids[1]; });
  EXPECT_EQ(deaths[0].pid, pids[0]);
  EXPECT_EQ(deaths[0].lost_bytes, 0U);
  EXPECT_EQ(deaths[1].pid, pids[1]);
  EXPECT_EQ(deaths[1].lost_bytes, 10U);
}

TEST_F(PeerDeaths, AreNoDeathsOfForkedChildren) {
  auto buffer = made();
  auto const id = published(buffer);
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  PeerProcess peer;
  open(peer, id);
  auto const kill_a_child = [](std::string const& answer) {
    ASSERT_TRUE(answer.starts_with("ok "));
    ::kill(std::stoi(answer.substr(3)), SIGKILL);
  };
  kill_a_child(peer.ask("fork"));
  settle(told);
  EXPECT_EQ(told.now().size(), 1U);
  // A parent's is one, though a child has its mappings.
  auto const child = peer.ask("fork");
  auto const pid = static_cast<std::uint32_t>(peer.pid());
  peer.kill();
  EXPECT_EQ(told.await(2)[1].pid, pid);
  kill_a_child(child);
}

TEST_F(PeerDeaths, InAForkedChildAreNotItsParents) {
  auto buffer = made();
  auto const id = published(buffer);
  Told told;
  std::optional<PeerDeathSubscription> subscription = shared.on_peer_death(told.callback());
  auto const child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    subscription.reset();  // of nothing here
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  PeerProcess peer;
  open(peer, id);
  peer.kill();
  EXPECT_EQ(told.await(1).size(), 1U) << "the parent's goes on";
}

TEST_F(PeerDeaths, NameNoBuffersThatHaveNoIdHere) {
  auto buffer = made();
  auto const id = published(buffer);
  PeerProcess peer;
  open(peer, id);
  shared.release(id);
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  peer.kill();
  EXPECT_EQ(told.await(1)[0].buffers, std::vector<BufferId>{});
}

TEST_F(PeerDeaths, AreToldToWhoeverSubscribedUntilItEnds) {
  auto buffer = made();
  auto const id = published(buffer);
  Told one, other, late;
  auto first = shared.on_peer_death(one.callback());
  auto second = registry().on_peer_death(other.callback());
  {
    PeerProcess peer;
    open(peer, id);
    peer.kill();
    EXPECT_EQ(one.await(1).size(), 1U);
    EXPECT_EQ(other.await(1).size(), 1U);
  }
  first.end();
  auto const third = shared.on_peer_death(late.callback());
  settle(other);
  settle(late);
  EXPECT_EQ(one.now().size(), 1U);
  EXPECT_EQ(other.now().size(), 3U);
  EXPECT_EQ(late.now().size(), 2U);
}

TEST_F(PeerDeaths, TakeAThreadWhileSomebodyWantsToKnow) {
  auto const thread_count_becomes = [](std::size_t count) {
    auto const until = std::chrono::steady_clock::now() + PeerProcess::patience;
    while (threads() != count && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return threads() == count;
  };
  // That of a test before may be ending.
  auto before = threads();
  for (int i = 0; i < 200; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
    before = std::min(before, threads());
  }
  {
    auto const first = shared.on_peer_death([](PeerDeath const&) {});
    auto const second = shared.on_peer_death([](PeerDeath const&) {});
    EXPECT_EQ(threads(), before + 1);
  }
  for (int i = 0; i < 50; ++i) {
    auto first = shared.on_peer_death([](PeerDeath const&) {});
    auto second = shared.on_peer_death([](PeerDeath const&) {});
  }
  EXPECT_TRUE(thread_count_becomes(before)) << threads() << " of " << before;
  EXPECT_THROW(static_cast<void>(shared.on_peer_death(nullptr)), InvalidArgument);
}

TEST_F(PeerDeaths, EndASubscriptionFromItsCallback) {
  auto buffer = made();
  auto const id = published(buffer);
  Told told;
  std::mutex mutex;
  std::optional<PeerDeathSubscription> subscription;
  {
    std::scoped_lock const lock(mutex);
    subscription = shared.on_peer_death([&](PeerDeath const& death) {
      std::scoped_lock const set(mutex);
      subscription->end();
      told.callback()(death);
    });
  }
  Told always;
  auto const goes_on = shared.on_peer_death(always.callback());
  for (int i = 0; i < 2; ++i) {
    PeerProcess peer;
    open(peer, id);
    peer.kill();
    static_cast<void>(always.await(static_cast<std::size_t>(i) + 1));
  }
  EXPECT_EQ(told.now().size(), 1U);
}

TEST_F(PeerDeaths, EndTheLastSubscriptionFromItsCallbackAndSubscribeAnother) {
  auto buffer = made();
  auto const id = published(buffer);
  Told first, second;
  std::mutex mutex;
  std::optional<PeerDeathSubscription> subscription;
  {
    std::scoped_lock const lock(mutex);
    subscription = shared.on_peer_death([&](PeerDeath const& death) {
      std::scoped_lock const set(mutex);
      subscription->end();
      subscription = shared.on_peer_death(second.callback());
      first.callback()(death);
    });
  }
  for (int i = 0; i < 2; ++i) {
    PeerProcess peer;
    open(peer, id);
    peer.kill();
    static_cast<void>((i == 0 ? first : second).await(1));
  }
  std::scoped_lock const lock(mutex);
  subscription->end();
  EXPECT_EQ(first.now().size(), 1U);
  EXPECT_EQ(second.now().size(), 1U);
}

TEST_F(PeerDeaths, WaitForACallThatIsGoingOn) {
  auto buffer = made();
  auto const id = published(buffer);
  std::atomic<bool> begun{false}, goes_on{true};
  auto subscription = shared.on_peer_death([&](PeerDeath const&) {
    begun = true;
    while (goes_on) std::this_thread::yield();
    std::this_thread::sleep_for(milliseconds(20));
    begun = false;
  });
  PeerProcess peer;
  open(peer, id);
  peer.kill();
  while (!begun) std::this_thread::yield();
  goes_on = false;
  subscription.end();
  EXPECT_FALSE(begun);
}

std::atomic<int> errors_logged{0};

TEST_F(PeerDeaths, AreToldToOthersWhenACallbackThrows) {
  auto buffer = made();
  auto const id = published(buffer);
  errors_logged = 0;
  set_log_sink([](LogLevel level, std::string_view text) noexcept {
    if (level == LogLevel::error && text.find("on purpose") != std::string_view::npos) ++errors_logged;
    return true;
  });
  Told told;
  {
    auto const throws = shared.on_peer_death([](PeerDeath const&) { throw std::runtime_error("on purpose"); });
    auto const subscription = shared.on_peer_death(told.callback());
    for (std::size_t i = 0; i < 2; ++i) {
      PeerProcess peer;
      open(peer, id);
      peer.kill();
      EXPECT_EQ(told.await(i + 1).size(), i + 1);
    }
  }
  set_log_sink(nullptr);
  EXPECT_EQ(errors_logged, 2);
}

TEST_F(PeerDeaths, AreAllToldWhenManyDieAtOnce) {
  constexpr std::size_t count = 20;
  auto buffer = made();
  auto const id = published(buffer);
  Told told;
  auto const subscription = shared.on_peer_death(told.callback());
  std::vector<std::unique_ptr<PeerProcess>> peers;
  std::vector<std::uint32_t> pids;
  for (std::size_t i = 0; i < count; ++i) {
    auto& peer = *peers.emplace_back(std::make_unique<PeerProcess>());
    open(peer, id);
    ASSERT_TRUE(peer.ask("map_as read_write " + std::to_string(100 * i) + " 10").starts_with("ok"));
    pids.push_back(static_cast<std::uint32_t>(peer.pid()));
  }
  for (auto const pid : pids) ::kill(static_cast<::pid_t>(pid), SIGKILL);
  auto deaths = told.await(count);
  ASSERT_EQ(deaths.size(), count);
  std::ranges::sort(deaths, {}, &PeerDeath::pid);
  std::ranges::sort(pids);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(deaths[i].pid, pids[i]);
    EXPECT_EQ(deaths[i].lost_bytes, 10U);
    EXPECT_EQ(deaths[i].buffers, std::vector<BufferId>{id});
  }
  for (auto const& peer : peers) EXPECT_TRUE(peer->ended_within(PeerProcess::patience));
}

TEST_F(PeerDeaths, LetCallbacksUseBuffers) {
  auto buffer = made();
  auto const id = published(buffer);
  Told told;
  auto const subscription = shared.on_peer_death([&](PeerDeath const& death) {
    buffer.slice(0, 10).copy_from(std::vector<Byte>(10, 9));
    auto const opened = shared.open<Byte>(death.buffers.at(0));
    EXPECT_EQ(opened.to_vector()[9], 9);
    told.callback()(death);
  });
  PeerProcess peer;
  open(peer, id);
  ASSERT_TRUE(peer.ask("map_as read_write 0 10").starts_with("ok"));
  peer.kill();
  static_cast<void>(told.await(1));
}

}  // namespace
}  // namespace unimem::testing
