#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "process/steps.hpp"
#include "processes/peer_commands.hpp"
#include "processes/peer_process.hpp"

#include <sys/wait.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// A process that is stopped with the lock of what processes know together.

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

class StoppedProcesses : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  StoppedProcesses() {
    auto options = on_sim();
    options.shared = true;
    buffer = UnifiedBuffer<Byte>(size, std::move(options));
    buffer.copy_from(pattern_of(size, 1));
    auto const id = to_string(shared.publish(buffer, {.cross_process = true}));
    for (auto* const peer : {&stopped, &other}) EXPECT_EQ(peer->ask("open " + id), "ok 4096");
    static_cast<void>(buffer.to_vector());  // nothing is left to be found out
  }
  /// The one is stopped with the lock.
  void stop() {
    ASSERT_EQ(stopped.ask("stop_at " + std::to_string(static_cast<int>(detail::Step::lock_taken))), "ok");
    stopped.tell("see 4000 10");
    int status = 0;
    ASSERT_EQ(::waitpid(stopped.pid(), &status, WUNTRACED), stopped.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void go_on() {
    stopped.go_on();
    auto const all = pattern_of(size, 1);
    EXPECT_EQ(stopped.answer(), "ok " + told(std::span(all).subspan(4000, 10)));
  }

  BufferRegistry shared;
  UnifiedBuffer<Byte> buffer{0};
  PeerProcess stopped, other;
};

/// Each takes the patience of the lock: ten seconds.
TEST_F(StoppedProcesses, KeepAWriteFromOthersUntilItsProcessUsesTheBufferAgain) {
  auto mapped = buffer.slice(0, 10).map(MapMode::read_write);
  mapped[0] = 7;
  stop();
  mapped.unmap();
  go_on();
  other.tell("read 0 1");
  EXPECT_FALSE(other.answers_within(200ms)) << "it is still claimed";
  EXPECT_EQ(buffer.slice(3000, 1).to_vector(), Bytes{pattern_byte(1, 3000)});
  EXPECT_EQ(other.answer(), "ok 07");
  EXPECT_EQ(other.ask("write 0 1 8"), "ok");
  EXPECT_EQ(buffer.slice(0, 1).to_vector(), Bytes{8});
}

TEST_F(StoppedProcesses, KeepAReadLikewise) {
  auto mapped = buffer.slice(0, 10).map(MapMode::read);
  stop();
  mapped.unmap();
  go_on();
  other.tell("write 0 1 8");
  EXPECT_FALSE(other.answers_within(200ms));
  static_cast<void>(buffer.state());
  EXPECT_EQ(other.answer(), "ok");
  EXPECT_EQ(buffer.slice(0, 1).to_vector(), Bytes{8});
}

TEST_F(StoppedProcesses, LoseNothingThatWasWrittenWhenItsProcessLetsGo) {
  auto mapped = buffer.slice(0, 10).map(MapMode::read_write);
  mapped[0] = 7;
  stop();
  mapped.unmap();
  go_on();
  buffer.free();
  EXPECT_EQ(other.ask("read 0 1"), "ok 07");
}

}  // namespace
}  // namespace unimem::testing
