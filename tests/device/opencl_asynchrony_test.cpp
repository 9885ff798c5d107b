#include "device/conformance_fixture.hpp"
#include "device/opencl_fixture.hpp"
#include "device/opencl_user_event.hpp"

#include <thread>

namespace unimem {
namespace {

/// Queues held back by an event that the test completes: what is asynchronous can be seen without sleeping.
class OpenClAsynchrony : public OpenClTest {
 protected:
  void SetUp() override {
    OpenClTest::SetUp();
    if (IsSkipped()) return;
    if (works_in_the_submitting_thread(device()))
      GTEST_SKIP() << device().info().name << " works in the submitting thread";
  }
};

TEST_F(OpenClAsynchrony, EveryOperationReturnsBeforeItsWorkIsDone) {
  auto const a = take(device(), 4096), b = take(device(), 4096);
  auto const program = compile(device(), "nothing", "UNIMEM_KERNEL nothing() {}");
  auto const source = noise(4096, 1);
  Bytes result(4096);
  auto queue = device().create_queue();
  auto const before = device().transfers();
  {
    UserEvent const gate{queue};
    auto const upload = queue.upload(a, source.data(), 4096);
    auto const copy = queue.copy(b, a, 4096);
    auto const fill = queue.fill(a, repeated(4, 1));
    auto const odd_fill = queue.fill(a.window(1, 8), repeated(4, 2));
    auto const run = queue.run(program, {1}, {});
    auto const download = queue.download(result.data(), b, 4096);
    for (auto const& event : {upload, copy, fill, odd_fill, run, download}) EXPECT_FALSE(event.ready());
    EXPECT_EQ(queue.completed(), 0U);
    EXPECT_EQ(result, Bytes(4096));
    EXPECT_EQ(device().transfers().host_to_device_bytes, before.host_to_device_bytes) << "nothing has moved yet";
  }
  queue.synchronize();
  EXPECT_EQ(result, source);
  EXPECT_EQ(queue.completed(), 6U);
  EXPECT_EQ(device().transfers().host_to_device_bytes, before.host_to_device_bytes + 4096);
}

TEST_F(OpenClAsynchrony, AWaitingQueueDoesNotBlockItsUser) {
  auto const memory = take(device(), 4096);
  auto const source = noise(4096, 2);
  Bytes result(4096);
  auto writer = device().create_queue(), reader = device().create_queue();
  Event done;
  {
    UserEvent const gate{writer};
    reader.wait(writer.upload(memory, source.data(), 4096));
    done = reader.download(result.data(), memory, 4096);
    EXPECT_FALSE(done.ready());
    EXPECT_EQ(result, Bytes(4096));
  }
  done.wait();
  EXPECT_EQ(result, source);
}

TEST_F(OpenClAsynchrony, AWaitingThreadReturns) {
  auto const memory = take(device(), 64);
  auto const source = noise(64, 3);
  auto queue = device().create_queue();
  std::vector<std::thread> waiters;
  {
    UserEvent const gate{queue};
    auto const event = queue.upload(memory, source.data(), 64);
    for (int i = 0; i < 3; ++i) waiters.emplace_back([event] { event.wait(); });
    EXPECT_FALSE(event.ready());
  }
  for (auto& waiter : waiters) waiter.join();
  EXPECT_EQ(queue.completed(), 1U);
}

TEST_F(OpenClAsynchrony, AnotherDevicesWorkIsWaitedFor) {
  static Device& other = kept(detail::open_opencl_device(0, "zero_copy=0"));
  auto const memory = take(device(), 4096), far = take(other, 4096);
  auto const source = noise(4096, 4);
  Bytes between(4096), result(4096);
  auto queue = device().create_queue(), far_queue = other.create_queue();
  far_queue.upload(far, source.data(), 4096);
  auto const fetched = far_queue.download(between.data(), far, 4096);
  queue.wait(fetched);
  EXPECT_TRUE(fetched.ready());
  queue.upload(memory, between.data(), 4096);
  queue.download(result.data(), memory, 4096).wait();
  EXPECT_EQ(result, source);
}

}  // namespace
}  // namespace unimem
