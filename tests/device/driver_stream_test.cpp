#include "device/driver_stream.hpp"

#include <unimem/device/sim.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>

// What a stream asks its driver, and when.

namespace unimem::detail {
namespace {

struct Script {
  std::size_t asked = 0;  ///< how often a command was asked for its outcome
  bool running = true;
};

class Command final : public DriverCommand {
 public:
  explicit Command(Script& script) : script_(script) {}
  [[nodiscard]] Outcome outcome() noexcept override {
    ++script_.asked;
    return {script_.running, nullptr};
  }
  void wait() const noexcept override {}
  [[nodiscard]] char const* call() const noexcept override { return "a call"; }

 private:
  Script& script_;
};

/// A stream whose driver tells of all by the last.
class TellingStream final : public DriverStream {
 public:
  TellingStream(Device& device, QueueControl& control, Script& script)
      : DriverStream(device, control), script_(script) {
    enlist();
  }
  TellingStream(TellingStream const&) = delete;
  TellingStream& operator=(TellingStream const&) = delete;
  ~TellingStream() override { leave(); }

 protected:
  [[nodiscard]] std::size_t ended_at_front(Pending const& pending) const noexcept override {
    return script_.running ? 0 : pending.size() - 1;
  }

 private:
  Script& script_;
};

class DriverStreams : public ::testing::Test {
 protected:
  void append(DriverStream& stream, int count) {
    for (int i = 0; i < count; ++i) {
      auto const lock = stream.submission();
      stream.append(std::make_shared<Command>(script));
    }
  }

  Script script;
  Device& sim = make_sim();
  QueueControl& control = QueueControl::create();
};

TEST_F(DriverStreams, AskOnceInSixteenSubmissions) {
  DriverStream stream(sim, control);
  append(stream, 160);
  EXPECT_EQ(script.asked, 10U) << "each time for the first alone, which has not ended";
  script.running = false;
  append(stream, 16);
  EXPECT_EQ(control.completed(), 176U) << "by then all have";
  EXPECT_EQ(script.asked, 10U + 176);
  EXPECT_TRUE(stream.is_idle());
}

TEST_F(DriverStreams, AskWhenTheyAreAsked) {
  DriverStream stream(sim, control);
  append(stream, 3);
  stream.poll();
  EXPECT_EQ(control.completed(), 0U);
  script.running = false;
  stream.poll();
  EXPECT_EQ(control.completed(), 3U);
}

TEST_F(DriverStreams, DoNotAskForWhatALaterEndTells) {
  TellingStream stream(sim, control, script);
  append(stream, 15);
  script.running = false;
  stream.poll();
  EXPECT_EQ(control.completed(), 15U);
  EXPECT_EQ(script.asked, 1U) << "the last";
}

/// ThreadSanitizer tells where the end of the process calls a stream that is half made or half destroyed.
TEST_F(DriverStreams, ComeAndGoWhileTheProcessEnds) {
  std::atomic<bool> over{false};
  std::atomic<int> gone{0};
  std::thread comes_and_goes([&] {
    for (; !over; ++gone) TellingStream const stream(sim, control, script);
  });
  while (gone < 2000) finish_all_streams();
  over = true;
  comes_and_goes.join();
  EXPECT_EQ(script.asked, 0U) << "they have no commands";
}

}  // namespace
}  // namespace unimem::detail
