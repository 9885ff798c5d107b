#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/message_queue.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace unimem::testing {
namespace {

/// The message pattern: who has work to do sends an id, an offset and a count, and a worker does it in place.
class Workers : public BufferTest {
 protected:
  BufferRegistry shared;
};

TEST_F(Workers, WorkInPlaceOnTheDevice) {
  auto buffer = synchronized();
  auto const id = shared.publish(buffer, {.name = "frame"});
  auto const before = buffer.statistics();
  MessageQueue<BufferRef> requests(4);
  MessageQueue<Event> replies(4);
  {
    std::jthread const worker([&] {
      auto queue = sim.create_queue();
      while (auto const request = requests.receive()) {
        ASSERT_TRUE(replies.send(add(queue, shared.resolve<std::uint32_t>(*request), 1000)));
      }
      replies.close();
    });
    ASSERT_TRUE(requests.send(shared.refer(id, 10, 20)));
    ASSERT_TRUE(requests.send({id, 50, 5}));
    requests.close();
    int done = 0;
    while (auto const reply = replies.receive()) {
      reply->wait();
      ++done;
    }
    EXPECT_EQ(done, 2);
  }
  EXPECT_EQ(moved(buffer.statistics()), moved(before)) << "passing it, and the work, copied nothing";
  EXPECT_EQ(moved(sim.transfers()), moved(before)) << "and so says the device";
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);

  auto expected = counting(100);
  for (std::size_t i = 10; i < 30; ++i) expected[i] += 1000;
  for (std::size_t i = 50; i < 55; ++i) expected[i] += 1000;
  EXPECT_EQ(buffer.to_vector(), expected) << "the sender sees the result";
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 45 * 4, 1}))
      << "of which the changed elements came back, and what lies between them for less than another command";
  shared.release(id);
}

TEST_F(Workers, WorkInPlaceOnTheHost) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  auto const* const memory = std::as_const(buffer).host_view().data();
  auto const id = shared.publish(buffer);
  MessageQueue<BufferRef> requests(1), replies(1);
  std::jthread const worker([&] {
    while (auto const request = requests.receive()) {
      auto window = shared.resolve<std::uint32_t>(*request);
      for (auto& element : window.host()) element *= 2;
      ASSERT_EQ(window.host_view().data(), memory + request->offset);
      ASSERT_TRUE(replies.send(*request));
    }
  });
  auto expected = counting(100);
  for (std::size_t offset = 0; offset < 100; offset += 25) {
    ASSERT_TRUE(requests.send({id, offset, 25}));
    EXPECT_EQ(replies.receive(), (BufferRef{id, offset, 25}));
    for (std::size_t i = offset; i < offset + 25; ++i) expected[i] *= 2;
    EXPECT_EQ(buffer.to_vector(), expected);
  }
  requests.close();
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
  EXPECT_EQ(moved(sim.transfers()), Moved{});
}

TEST_F(Workers, AnswerBeforeTheDeviceHasFinished) {
  auto buffer = synchronized();
  auto const id = shared.publish(buffer);
  MessageQueue<BufferRef> requests(1), replies(1);
  auto queue = sim.create_queue();
  std::optional<Gate> gate{queue};
  std::jthread const worker([&] {
    while (auto const request = requests.receive()) {
      add(queue, shared.resolve<std::uint32_t>(*request), 7);
      ASSERT_TRUE(replies.send(*request));
    }
  });
  ASSERT_TRUE(requests.send({id}));
  ASSERT_TRUE(replies.receive());
  auto const behind = add(sim.default_queue(), buffer.slice(0), 1);
  EXPECT_FALSE(behind.ready()) << "the sender's next work is ordered behind the worker's by the buffer itself";
  gate.reset();
  EXPECT_EQ(buffer.to_vector(), counting(100, 8));
  requests.close();
}

TEST_F(Workers, RefuseMalformedWireForms) {
  auto buffer = synchronized();
  auto const id = shared.publish(buffer), gone = shared.publish(buffer);
  shared.release(gone);
  MessageQueue<BufferRef::Wire> requests(8);
  MessageQueue<std::string> replies(8);
  std::jthread const worker([&] {
    while (auto const request = requests.receive()) {
      try {
        add(sim.default_queue(), shared.resolve<std::uint32_t>(BufferRef::from_wire(*request)), 1);
        ASSERT_TRUE(replies.send("done"));
      } catch (NotFound const& error) {
        ASSERT_TRUE(replies.send(error.reason));
      } catch (InvalidArgument const& error) {
        ASSERT_TRUE(replies.send(error.argument));
      }
    }
  });
  auto const answer_to = [&](BufferRef::Wire const& wire) {
    EXPECT_TRUE(requests.send(wire));
    return replies.receive().value_or("nothing");
  };
  EXPECT_EQ(answer_to(shared.refer(id, 0, 50).to_wire()), "done");
  EXPECT_EQ(answer_to(BufferRef{gone}.to_wire()), "it was released");
  EXPECT_EQ(answer_to(BufferRef{id, 51, 50}.to_wire()), "count");
  EXPECT_EQ(answer_to(BufferRef{id, 0, 50, ElementTag::f32}.to_wire()), "element tag");
  auto garbled = BufferRef{id, 0, 50}.to_wire();
  garbled[30] ^= std::byte{4};
  EXPECT_EQ(answer_to(garbled), "buffer reference");
  requests.close();
  auto expected = counting(100);
  for (std::size_t i = 0; i < 50; ++i) ++expected[i];
  EXPECT_EQ(buffer.to_vector(), expected) << "what was refused has changed nothing";
}

TEST_F(Workers, EachSenderSeesItsOwnResults) {
  constexpr std::size_t senders = 4, workers = 3, rounds = 60;
  constexpr std::uint32_t seed = 17;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  struct Request {
    BufferRef window;
    std::uint32_t amount = 0;
    MessageQueue<BufferRef>* reply = nullptr;
  };
  MessageQueue<Request> requests(5);
  {
    std::vector<std::jthread> working;
    for (std::size_t i = 0; i < workers; ++i) {
      working.emplace_back([&, i] {
        auto queue = sim.create_queue();
        while (auto const request = requests.receive()) {
          auto window = shared.resolve<std::uint32_t>(request->window);
          if (i == 0) {  // one of them works on the host
            for (auto& element : window.host()) element += request->amount;
          } else {
            add(queue, window, request->amount);
          }
          ASSERT_TRUE(request->reply->send(request->window));
        }
      });
    }
    std::vector<std::jthread> sending;
    for (std::size_t i = 0; i < senders; ++i) {
      sending.emplace_back([&, i] {
        std::mt19937 random{seed + static_cast<std::uint32_t>(i)};
        UnifiedBuffer<std::uint32_t> buffer(64, on_sim());
        auto expected = counting(64, static_cast<std::uint32_t>(i) * 1000);
        buffer.copy_from(expected);
        auto const id = shared.publish(buffer);
        MessageQueue<BufferRef> replies(1);
        for (std::size_t round = 0; round < rounds; ++round) {
          std::size_t const offset = random() % 65, count = random() % (65 - offset);
          auto const amount = static_cast<std::uint32_t>(random() % 100);
          ASSERT_TRUE(requests.send({shared.refer(id, offset, count), amount, &replies}));
          ASSERT_TRUE(replies.receive());
          for (std::size_t k = offset; k < offset + count; ++k) expected[k] += amount;
          if (round % 8 == 0) {
            ASSERT_EQ(buffer.to_vector(), expected);
          }
        }
        ASSERT_EQ(buffer.to_vector(), expected);
        shared.release(id);
      });
    }
    sending.clear();  // joined
    requests.close();
  }
  EXPECT_EQ(shared.size(), 0U);
  EXPECT_EQ(shared.statistics().opened, senders * rounds);
}

}  // namespace
}  // namespace unimem::testing
