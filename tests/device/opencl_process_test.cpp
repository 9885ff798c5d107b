#include <unimem/core/error.hpp>

#include "device/opencl_fixture.hpp"
#include "device/opencl_user_event.hpp"
#include "device/users_opencl.hpp"
#include "forked_child.hpp"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

// How a process that used OpenCL ends, and what is left of it in a forked child. Each scenario runs in a process of its
// own, as death tests that do not die.

namespace unimem {
namespace {

using ::testing::ExitedWithCode;

constexpr auto add_one = R"(
UNIMEM_KERNEL add_one(UNIMEM_BUFFER(unimem_u32, x)) { UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += 1; })";

/// Work enough to be still going when the process ends.
void submit_much(Device& device, Queue& queue, DeviceMemory memory) {
  auto const program = compile(device, "add_one", add_one);
  // Once to its end: PoCL compiles at the first run, and what it does then is not to be interrupted by exit from any
  // thread.
  queue.run(program, {memory.bytes / 4}, std::vector{argument(memory)}).wait();
  for (int i = 0; i < 200; ++i) queue.run(program, {memory.bytes / 4}, std::vector{argument(memory)});
}

class OpenClProcessEnd : public OpenClTest {
 protected:
  OpenClProcessEnd() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(OpenClProcessEnd, WithPendingWorkIsClean) {
  auto const scenario = [] {
    static std::vector<std::uint32_t> host(1 << 16);
    auto const memory = device().allocate(host.size() * 4, Location::device);
    submit_much(device(), device().default_queue(), memory);
    device().default_queue().download(host.data(), memory, memory.bytes);
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(OpenClProcessEnd, FromAnotherThreadIsCleanToo) {
  auto const scenario = [] {
    std::thread{[] {
      auto const memory = device().allocate(1 << 16, Location::device);
      submit_much(device(), device().default_queue(), memory);
      std::exit(7);
    }}.join();
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(OpenClProcessEnd, MayDestroyObjectsAfterTheDriver) {
  auto const scenario = [] {
    // Made before the driver was loaded, so destroyed after it has torn itself down.
    static struct Late {
      std::optional<Queue> queue;
      std::shared_ptr<Program const> program;
      Event event;
      DeviceMemory memory;
      Device* device = nullptr;
      ~Late() {
        static_cast<void>(
            event.wait_for_error());  // ended, well or with the process: what matters is that this returns
        if (!event.ready()) std::_Exit(1);
        int refused = 0;
        try {
          queue->run(program, {1}, std::vector{argument(memory)});
        } catch (UnsupportedOperation const&) {
          ++refused;
        }
        queue.reset();
        program.reset();
        device->release(memory, Location::device);
        std::_Exit(refused == 1 ? 7 : 2);
      }
    } late;
    late.device = &kept(detail::open_opencl_device(0, ""));
    late.queue.emplace(late.device->create_queue());
    late.memory = late.device->allocate(1 << 16, Location::device);
    late.program = compile(*late.device, "add_one", add_one);
    submit_much(*late.device, *late.queue, late.memory);
    late.event = late.queue->record();
    std::exit(0);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(OpenClProcessEnd, WaitsForWorkInAQueueOfTheUsers) {
  auto const scenario = [] {
    static auto& user = *new UsersOpenCl;
    auto& ours = adopt_context(user.context, user.hardware);
    static auto queue = std::make_optional(adopt_queue(ours, user.queue));
    user.release();
    submit_much(ours, *queue, ours.allocate(1 << 16, Location::device));
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

TEST_F(OpenClProcessEnd, DoesNotWaitForEndlessWork) {
  if (works_in_the_submitting_thread(device()))
    GTEST_SKIP() << device().info().name << " would never come back from submitting";
  auto const begin = std::chrono::steady_clock::now();
  auto const scenario = [] {
    auto& queue = device().default_queue();
    static UserEvent* volatile never_opened =
        nullptr;  // volatile: a pointer nobody reads is no owner to a leak checker
    never_opened = new UserEvent{queue};
    if (never_opened == nullptr) std::_Exit(1);
    auto const memory = device().allocate(64, Location::device);
    queue.fill(memory, std::array{std::byte{1}});
    std::exit(7);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{20});
}

TEST_F(OpenClProcessEnd, AForkedChildHasNoDriver) {
  auto const scenario = [] {
    auto const memory = device().allocate(1 << 20, Location::device);
    auto queue = device().create_queue();
    submit_much(device(), queue, memory);
    auto const pending = queue.record();
    auto const child = fork_while_others_sleep();
    if (child == 0) {
      alarm(20);  // a child that hangs is a failure, not a test that hangs
      int refused = 0;
      try {
        queue.fill(memory, std::array{std::byte{1}});
      } catch (UnsupportedOperation const&) {
        ++refused;
      }
      // What had ended before the fork has ended well here too.
      try {
        pending.wait();
        ++refused;
      } catch (UnsupportedOperation const&) {
        ++refused;
      }
      device().release(memory, Location::device);
      std::exit(refused);
    }
    auto const ending = ending_of(child);
    pending.wait();  // the parent goes on as if nothing had been
    device().release(memory, Location::device);
    std::_Exit(ending == 2 ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ExitedWithCode(7), "");
}

}  // namespace
}  // namespace unimem
