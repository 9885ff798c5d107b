#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/shared_book.hpp"
#include "process/steps.hpp"
#include "processes/peer_commands.hpp"
#include "processes/peer_process.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// A process is killed at every step of publishing, opening, writing, reading and letting go of a buffer, and anywhere,
// while others go on with it: UNIMEM_TEST_KILLS=10000 for long, UNIMEM_TEST_SEED for others.

namespace unimem::testing {
namespace {

using detail::SharedRanges;
using detail::Step;
using std::chrono::milliseconds;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

std::optional<std::size_t> number_from(char const* variable) {
  auto const* const text = std::getenv(variable);
  return text == nullptr ? std::nullopt : std::optional<std::size_t>{std::stoull(text)};
}

Bytes pattern(std::uint32_t seed, std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = pattern_byte(seed, i);
  return bytes;
}

/// What a process has open, and maps, of memory without a name in the file system.
struct Holdings {
  std::size_t descriptors = 0, mappings = 0;

  /// Whoever looks for a buffer on this host asks every process that shares some, other tests' processes too: what is
  /// compared with may have been counted during such a question.
  [[nodiscard]] bool is_no_more_than(Holdings const& before) const {
    return descriptors <= before.descriptors && mappings == before.mappings;
  }
  friend std::ostream& operator<<(std::ostream& out, Holdings const& one) {
    return out << one.descriptors << " descriptors, " << one.mappings << " mappings";
  }
};
Holdings holdings_of(::pid_t pid) {
  Holdings found;
  auto const folder = fmt::format("/proc/{}/", pid);
  for (auto const& one : std::filesystem::directory_iterator(folder + "fd")) {
    static_cast<void>(one);
    ++found.descriptors;
  }
  std::ifstream maps(folder + "maps");
  for (std::string line; std::getline(maps, line);) found.mappings += line.find("/memfd:") != std::string::npos;
  return found;
}

bool has_socket(::pid_t pid) {
  std::ifstream sockets("/proc/net/unix");
  auto const name = fmt::format("@unimem-1-{}-{}-", ::geteuid(), pid);
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

/// Whether any process still has memory of that name.
bool is_held_by_anyone(std::string const& name) {
  auto const is_of = [&](std::string const& text) {
    auto const at = text.find("/memfd:");
    return at != std::string::npos && text.find(name, at) != std::string::npos;
  };
  std::error_code gone;
  for (auto const& process : std::filesystem::directory_iterator("/proc", gone)) {
    if (process.path().filename().native().find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      if (is_of(line)) return true;
    }
    for (auto const& file : std::filesystem::directory_iterator(process.path() / "fd", gone)) {
      auto const target = std::filesystem::read_symlink(file.path(), gone);
      if (is_of(target.native())) return true;
    }
  }
  return false;
}

template <class Condition>
bool comes_true(Condition const& condition) {
  auto const until = std::chrono::steady_clock::now() + PeerProcess::patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

/// Two processes that go on, in a part of the buffer each, and this one. The third part is of those that are killed.
class KilledHolders : public BufferTest {
 protected:
  static constexpr std::size_t part = 4096, victims = 2 * part, size = 3 * part;

  KilledHolders() {
    options_ = on_sim(fmt::format("a buffer of {}'s {}", ::getpid(), ++made_));
    options_.shared = true;
    buffer_.emplace(size, BufferOptions(options_));
    write_victims(1);
    id_ = to_string(shared_.publish(*buffer_, {.cross_process = true}));
    for (std::size_t i = 0; i < 2; ++i) {
      auto& peer = *survivors_.emplace_back(std::make_unique<PeerProcess>());
      EXPECT_EQ(peer.ask("open " + id_), "ok 12288");
    }
    go_on();
    rest();
    for (auto const& one : survivors_) held_.push_back(holdings_of(one->pid()));
    own_ = holdings_of(::getpid());
    go_on();
  }

  void go_on() {
    for (std::size_t i = 0; i < 2; ++i) {
      seed_ += 1'000'000;
      ASSERT_EQ(survivors_[i]->ask(fmt::format("work {} {} {} {} {}", i * part, part, victims, part, seed_)), "ok");
    }
    for (auto const& one : survivors_) ASSERT_TRUE(comes_true([&] { return one->ask("rounds") != "ok 0"; }));
  }
  /// They stop where they are, and all see what they have written last.
  void rest() {
    for (std::size_t i = 0; i < 2; ++i) {
      auto const said = survivors_[i]->ask("rest");
      ASSERT_TRUE(said.starts_with("ok ") && said.find_first_not_of("0123456789", 3) == std::string::npos) << said;
      expect_bytes(i * part, pattern(static_cast<std::uint32_t>(std::stoul(said.substr(3))), part));
    }
  }
  void expect_progress() {
    for (auto const& one : survivors_) {
      auto const before = one->ask("rounds");
      EXPECT_TRUE(comes_true([&] { return one->ask("rounds") != before; })) << "a survivor is stuck";
    }
  }
  void write_victims(std::uint32_t seed) {
    model_ = pattern(seed, part);
    buffer_->slice(victims, part).copy_from(model_);
  }
  /// To all that live.
  void expect_bytes(std::size_t offset, Bytes const& bytes) {
    EXPECT_TRUE(buffer_->slice(offset, bytes.size()).to_vector() == bytes) << "at " << offset;
    for (auto const& one : survivors_) {
      EXPECT_EQ(one->ask(fmt::format("see {} {}", offset, bytes.size())), "ok " + told(bytes)) << "at " << offset;
    }
  }
  [[nodiscard]] Bytes::iterator model_at(ByteRange range) {
    return model_.begin() + static_cast<std::ptrdiff_t>(range.begin - victims);
  }
  void expect_lost(ByteRange range) {
    EXPECT_THROW(static_cast<void>(buffer_->slice(range.begin, 1).to_vector()), DataLost) << range.begin;
    EXPECT_THROW(static_cast<void>(buffer_->slice(range.end - 1, 1).to_vector()), DataLost) << range.end;
    for (auto const& one : survivors_) {
      EXPECT_TRUE(one->ask(fmt::format("see {} {}", range.begin, range.size())).starts_with("error DataLost"));
    }
  }

  [[nodiscard]] std::shared_ptr<detail::SharedBook> book() const {
    auto const all = detail::SharedBooks::of_this_process().all();
    EXPECT_EQ(all.size(), 1U);
    return all.at(0);
  }

  /// A process that is to be killed, by itself where it has been told so. What it may have done: by the answers that it
  /// has given, and by what is in the book once it is known to be dead.
  class Victim {
   public:
    void tell(std::string const& line) const { process_->tell(line); }
    [[nodiscard]] ::pid_t pid() const { return pid_; }
    void kill() const { ::kill(pid_, SIGKILL); }
    /// Its answers; by the signal, and not as a program that ends.
    std::vector<std::string> end() {
      int status = 0;
      EXPECT_TRUE(comes_true([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) << "it has not come there";
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
      std::vector<std::string> answers;
      try {
        for (;;) answers.push_back(process_->answer());
      } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): it has said no more
      }
      process_->has_ended();
      process_.reset();
      return answers;
    }

   private:
    std::unique_ptr<PeerProcess> process_ = std::make_unique<PeerProcess>();
    ::pid_t pid_ = process_->pid();
  };

  /// What it lost is all that there is lost, and whatever finds it dead has written down as much.
  std::vector<ByteRange> lost_with(::pid_t pid, std::uint64_t deaths_before, bool took_part) {
    auto const book = this->book();
    static_cast<void>(book->ranges().forget_dead());
    auto const lost = book->ranges().situation(SharedRanges::patience).lost;
    auto const deaths = book->ranges().deaths(deaths_before);
    if (took_part || !deaths.since.empty()) {
      EXPECT_EQ(deaths.since.size(), 1U);
      if (deaths.since.size() == 1) {
        EXPECT_EQ(deaths.since[0].process.pid, static_cast<std::uint32_t>(pid));
        EXPECT_EQ(deaths.since[0].lost_bytes, lost.size_bytes());
      }
    }
    EXPECT_EQ(book->ranges().participants().size(), 3U);
    EXPECT_NO_THROW(book->ranges().validate());
    return {lost.ranges().begin(), lost.ranges().end()};
  }

  /// No descriptor, mapping, or name is left of it.
  void expect_nothing_left(::pid_t pid) {
    EXPECT_FALSE(has_socket(pid));
    auto const expect_no_more = [](::pid_t of, Holdings const& before) {
      EXPECT_TRUE(comes_true([&] { return holdings_of(of).is_no_more_than(before); }))
          << holdings_of(of) << "; before " << before;
    };
    for (std::size_t i = 0; i < survivors_.size(); ++i) expect_no_more(survivors_[i]->pid(), held_[i]);
    expect_no_more(::getpid(), own_);
  }

  void TearDown() override {
    if (HasFailure()) return;
    rest();
    survivors_.clear();
    buffer_.reset();
    EXPECT_TRUE(is_held_by_anyone(options_.name)) << "as the registry has it";
    for (auto const& one : shared_.list()) shared_.release(one.id);
    EXPECT_FALSE(is_held_by_anyone(options_.name)) << "the last holder's end frees it";
  }

  static inline int made_ = 0;
  BufferOptions options_;
  BufferRegistry shared_;
  std::optional<UnifiedBuffer<Byte>> buffer_;
  std::string id_;
  std::vector<std::unique_ptr<PeerProcess>> survivors_;
  std::vector<Holdings> held_;
  Holdings own_;
  std::uint32_t seed_ = 0;
  Bytes model_;
};

class KilledHoldersAtAStep : public KilledHolders, public ::testing::WithParamInterface<Step> {
 protected:
  static constexpr std::uint32_t theirs = 77;

  /// What leads a process there, with the buffer open.
  static std::string command(Step step) {
    if (step <= Step::publish_offered) return "@1 publish 4096 0";
    if (step == Step::leaving || step == Step::left) return "close";
    if (step == Step::read_claimed || step == Step::read_ended) return fmt::format("see {} {}", victims, part);
    return fmt::format("put_often 100000 {} {} {}", victims, part, theirs);
  }
  /// Which of the times it comes there.
  std::size_t pass(Step step) {
    if (step <= Step::open_joined || step >= Step::read_claimed) return 1;
    return 1 + random_() % 20;
  }

  std::mt19937 random_{static_cast<unsigned>(2026 + static_cast<int>(GetParam()))};
};

TEST_P(KilledHoldersAtAStep, LeaveOthersWhatTheyHaveWritten) {
  auto const step = GetParam();
  constexpr int times = 20;
  bool const opens = step >= Step::open_fetched && step <= Step::open_joined;
  int seen_written = 0;
  for (int i = 0; i < times; ++i) {
    SCOPED_TRACE(i);
    auto const deaths = book()->ranges().deaths(UINT64_MAX).count;
    Victim victim;
    auto const die = fmt::format("die_at {} {}", static_cast<int>(step), pass(step));
    if (opens) victim.tell(die);
    victim.tell("open " + id_);
    if (!opens) victim.tell(die);
    victim.tell(command(step));
    auto const answers = victim.end();
    EXPECT_EQ(answers.size(), opens ? 1U : 2U);
    bool const took_part = step != Step::open_fetched && step != Step::open_attached && step != Step::left;
    auto const lost = lost_with(victim.pid(), deaths, took_part);
    expect_progress();

    auto const region = std::vector<ByteRange>{{victims, victims + part}};
    if (step == Step::write_claimed) {
      EXPECT_EQ(lost, region);
    }
    if (step == Step::write_ended || step < Step::lock_taken || step >= Step::read_claimed) {
      EXPECT_TRUE(lost.empty());
    }
    if (!lost.empty()) {
      EXPECT_EQ(lost, region) << "as claimed";
      expect_lost(region[0]);
    } else {
      auto const there = buffer_->slice(victims, part).to_vector();
      auto const written = pattern(theirs, part);
      EXPECT_TRUE(there == model_ || there == written);
      seen_written += there == written ? 1 : 0;
      if (step < Step::lock_taken || step >= Step::read_claimed) {
        EXPECT_TRUE(there == model_);
      }
      expect_bytes(victims, there);
    }
    write_victims(static_cast<std::uint32_t>(i) + 2);
    expect_bytes(victims, model_);
    rest();
    expect_nothing_left(victim.pid());
    if (HasFailure()) return;
    go_on();
  }
  // Not each: where others have written something meanwhile, a claim ends without a write, and another one is made.
  if (step == Step::write_ended) {
    EXPECT_GE(seen_written, times / 2);
  }
}

std::string name_of(::testing::TestParamInfo<Step> const& info) {
  constexpr char const* names[] = {
      "PublishMadeSegment", "PublishCopied", "PublishOffered", "OpenFetched",   "OpenAttached",
      "OpenJoined",         "LockTaken",     "ChangePrepared", "ChangeInForce", "WriteClaimed",
      "WriteEnded",         "ReadClaimed",   "ReadEnded",      "Leaving",       "Left"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(All, KilledHoldersAtAStep,
                         ::testing::Values(Step::publish_made_segment, Step::publish_copied, Step::publish_offered,
                                           Step::open_fetched, Step::open_attached, Step::open_joined, Step::lock_taken,
                                           Step::change_prepared, Step::change_in_force, Step::write_claimed,
                                           Step::write_ended, Step::read_claimed, Step::read_ended, Step::leaving,
                                           Step::left),
                         name_of);

/// What a victim is told, and what is there once it has done it.
struct Told {
  std::string line;
  ByteRange writes{};  ///< that it claims, while it does it or from then on
  Bytes bytes{};       ///< that are there then; none: they are not known before another line is done
  enum class Claim : std::uint8_t { ends, stays, ends_later } claim = Claim::ends;
};

/// Ends with a line that is whole, and behind which nothing is claimed but by what may end later.
std::vector<Told> random_plan(std::mt19937& random, std::string const& id, std::size_t first, std::size_t part) {
  using enum Told::Claim;
  std::vector<Told> plan{{"open " + id}};
  for (int i = 0; i < 60; ++i) {
    auto const offset = random() % (part - 1), count = 1 + random() % (part - offset);
    auto const value = static_cast<std::uint32_t>(random() % 250 + 1);
    ByteRange const range{first + offset, first + offset + count};
    auto const where = fmt::format("{} {}", range.begin, range.size());
    Bytes const same(count, static_cast<Byte>(value));
    switch (random() % 6) {
      case 0:
        plan.push_back({fmt::format("fill {} {}", where, value), range, same});
        break;
      case 1:
        plan.push_back({"see " + where});
        break;
      case 2:
        plan.push_back({"map_as read_write " + where, range, {}, stays});
        plan.push_back({fmt::format("poke {}", value), range, {}, stays});
        plan.push_back({"unmap", range, same});
        break;
      case 3:
        plan.push_back({fmt::format("put_on sim {} {}", where, value), range, pattern(value, count), ends_later});
        plan.push_back({fmt::format("see_on sim {} {}", first, part)});
        break;
      default:
        plan.push_back({fmt::format("put {} {}", where, value), range, pattern(value, count)});
    }
  }
  plan.push_back({"close"});
  return plan;
}

/// Whether `lost` is what some of these claims are together.
bool are_some_of(std::vector<ByteRange> const& lost, std::vector<ByteRange> const& claims) {
  ByteRanges all, together;
  for (auto const range : lost) all.add(range);
  for (auto const claim : claims) {
    if (all.contains(claim)) together.add(claim);
  }
  return together == all;
}

TEST_F(KilledHolders, KilledAnywhereLeaveOthersWhatTheyHaveWritten) {
  auto const kills = number_from("UNIMEM_TEST_KILLS").value_or(40);
  auto const seed = number_from("UNIMEM_TEST_SEED").value_or(2026);
  fmt::print("UNIMEM_TEST_SEED={}\n", seed);
  std::mt19937 random(static_cast<unsigned>(seed));
  std::size_t with_loss = 0, in_the_middle = 0;
  for (std::size_t kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE(kill);
    auto const deaths = book()->ranges().deaths(UINT64_MAX).count;
    auto const plan = random_plan(random, id_, victims, part);
    Victim victim;
    for (auto const& one : plan) victim.tell(one.line);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    victim.kill();
    auto const answers = victim.end();
    auto const done = answers.size();
    for (std::size_t i = 0; i < done; ++i)
      ASSERT_TRUE(answers[i].starts_with("ok")) << plan[i].line << ": " << answers[i];
    std::vector<ByteRange> claims;
    for (std::size_t i = 0; i < done; ++i) {
      if (!plan[i].bytes.empty()) std::ranges::copy(plan[i].bytes, model_at(plan[i].writes));
      if (plan[i].claim == Told::Claim::ends_later) claims.push_back(plan[i].writes);
    }
    in_the_middle += done != 0 && done != plan.size() ? 1U : 0U;
    auto const lost = lost_with(victim.pid(), deaths, done != 0 && done < plan.size() - 1);
    expect_progress();
    with_loss += lost.empty() ? 0U : 1U;
    auto const* const at = done < plan.size() && !plan[done].writes.empty() ? &plan[done] : nullptr;
    if (at != nullptr) claims.push_back(at->writes);
    EXPECT_TRUE(are_some_of(lost, claims));
    auto const is_lost = [&](std::size_t byte) {
      return std::ranges::any_of(lost, [&](ByteRange range) { return range.contains({byte, byte + 1}); });
    };
    auto const is_there = [&](ByteRange range, Bytes const& bytes) {
      bool same = true;
      for (std::size_t byte = range.begin; byte < range.end; ++byte) {
        same = same && (is_lost(byte) || buffer_->slice(byte, 1).to_vector()[0] == bytes[byte - range.begin]);
      }
      return same;
    };
    if (at != nullptr) {
      bool const was_claimed = done != 0 && plan[done - 1].claim == Told::Claim::stays;
      if (was_claimed && at->claim == Told::Claim::stays) {
        EXPECT_TRUE(is_lost(at->writes.begin)) << "it was mapped";
      }
      // What it was at, where it is not lost, is done, and was not answered, or has not begun.
      auto const& later = was_claimed && at->bytes.empty() ? plan[done + 1].bytes : at->bytes;
      if (!later.empty() && is_there(at->writes, later)) std::ranges::copy(later, model_at(at->writes));
    }
    for (std::size_t begin = victims; begin < size;) {
      auto end = begin;
      while (end < size && is_lost(end) == is_lost(begin)) ++end;
      if (is_lost(begin)) {
        expect_lost({begin, end});
      } else {
        expect_bytes(begin,
                     Bytes(model_at({begin, end}), model_at({begin, end}) + static_cast<std::ptrdiff_t>(end - begin)));
      }
      begin = end;
    }
    if (HasFailure()) return;
    write_victims(static_cast<std::uint32_t>(kill) + 2);
    expect_bytes(victims, model_);
    rest();
    expect_nothing_left(victim.pid());
    if (HasFailure()) return;
    go_on();
  }
  EXPECT_GE(in_the_middle, kills / 4) << "the kills have met nothing";
  if (kills >= 40) {
    EXPECT_GT(with_loss, 0U);
  }
}

}  // namespace
}  // namespace unimem::testing
