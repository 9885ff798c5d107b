#pragma once

#include "device/conformance_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem {

/// What InvalidArgument names, or empty if `call` throws none.
template <class Call>
[[nodiscard]] std::string refused_argument(Call const& call) {
  try {
    call();
  } catch (InvalidArgument const& error) {
    return error.argument;
  }
  return {};
}

TEST_P(DeviceConformance, WorkOfAQueueRunsInOrder) {
  constexpr std::size_t bytes = 40'000;
  Allocated const a{device(), bytes}, b{device(), bytes};
  auto queue = device().create_queue();
  // Each step reads what the one before wrote, and overwrites what the one before read.
  std::vector<Bytes> inputs, outputs;
  for (unsigned step = 0; step < 100; ++step) {
    inputs.push_back(noise(bytes, step));
    outputs.emplace_back(bytes);
  }
  for (std::size_t step = 0; step < inputs.size(); ++step) {
    queue.upload(a.memory(), inputs[step].data(), bytes);
    queue.copy(b.memory(), a.memory(), bytes);
    queue.fill(a.memory(), repeated(1, 0xEE));
    queue.download(outputs[step].data(), b.memory(), bytes);
  }
  queue.synchronize();
  EXPECT_EQ(outputs, inputs);
}

TEST_P(DeviceConformance, QueueIdsAreNeverReused) {
  std::set<std::uint64_t> ids{0};
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(ids.insert(device().create_queue().id()).second);
  EXPECT_TRUE(ids.insert(device().default_queue().id()).second);
  EXPECT_FALSE(ids.insert(device().default_queue().id()).second) << "there is one default queue";
}

TEST_P(DeviceConformance, BadArgumentsAreRefusedBeforeAnythingIsSubmitted) {
  Allocated const piece{device(), 100};
  auto queue = device().create_queue();
  Bytes host(200);
  queue.upload(piece.memory(), host.data(), 100);
  auto const before = queue.record();

  EXPECT_EQ(refused_argument([&] { queue.upload(piece.memory(), host.data(), 101); }), "bytes");
  EXPECT_EQ(refused_argument([&] { queue.download(host.data(), piece.window(50, 50), 51); }), "bytes");
  EXPECT_EQ(refused_argument([&] { queue.copy(piece.window(0, 10), piece.window(50, 50), 11); }), "bytes");
  EXPECT_EQ(refused_argument([&] { queue.copy(piece.window(50, 50), piece.window(0, 10), 11); }), "bytes");
  EXPECT_EQ(refused_argument([&] { queue.copy(piece.window(0, 50), piece.window(49, 50), 50); }), "to");
  EXPECT_EQ(refused_argument([&] { queue.fill(piece.memory(), repeated(3, 0)); }), "pattern size");
  EXPECT_EQ(refused_argument([&] { queue.fill(piece.memory(), repeated(32, 0)); }), "pattern size");
  EXPECT_EQ(refused_argument([&] { queue.fill(piece.memory(), {}); }), "pattern size");
  EXPECT_EQ(refused_argument([&] { queue.fill(piece.memory(), repeated(8, 0)); }), "bytes");
  EXPECT_EQ(queue.record(), before);
  queue.synchronize();
}

TEST_P(DeviceConformance, ZeroBytesAreNoWork) {
  Allocated const piece{device(), 16};
  auto queue = device().create_queue();
  auto const before = queue.record();
  EXPECT_EQ(queue.upload(piece.memory(), nullptr, 0), before);
  EXPECT_EQ(queue.download(nullptr, piece.memory(), 0), before);
  EXPECT_EQ(queue.copy(piece.memory(), piece.memory(), 0), before);
  EXPECT_EQ(queue.fill(piece.window(3, 0), repeated(4, 1)), before);
  EXPECT_TRUE(queue.record().ready());
}

TEST_P(DeviceConformance, AQueueMovesWithItsWork) {
  Allocated const piece{device(), 100'000};
  auto const news = noise(100'000, 3);
  Bytes result(news.size());
  auto first = device().create_queue();
  auto const id = first.id();
  first.upload(piece.memory(), news.data(), news.size());
  auto second = std::move(first);
  EXPECT_EQ(second.id(), id);
  second.download(result.data(), piece.memory(), result.size()).wait();
  EXPECT_EQ(result, news);
  second = device().create_queue();
  EXPECT_NE(second.id(), id);
}

TEST_P(DeviceConformance, AMovedFromQueueIsRefused) {
  Allocated const piece{device(), 100};
  Bytes host(100);
  auto queue = device().create_queue();
  auto taken = std::move(queue);
  auto const others = device().create_queue().record();
  auto const& moved_from = queue;
  std::vector<std::function<void()>> const uses{
      [&] { std::ignore = moved_from.device(); },
      [&] { queue.upload(piece.memory(), host.data(), 100); },
      [&] { queue.upload(piece.memory(), host.data(), 0); },
      [&] { queue.download(host.data(), piece.memory(), 100); },
      [&] { queue.copy(piece.window(0, 10), piece.window(50, 10), 10); },
      [&] { queue.copy(piece.window(0, 10), device(), piece.window(50, 10), 10); },
      [&] { queue.fill(piece.memory(), repeated(1, 0)); },
      [&] { queue.run(nullptr, Range{1}, {}); },
      [&] { queue.join({}); },
      [&] { queue.wait(others); },
      [&] { queue.synchronize(); },
      [&] { std::ignore = moved_from.native<void*>(); },
  };
  for (std::size_t i = 0; i < uses.size(); ++i) EXPECT_EQ(refused_argument(uses[i]), "queue") << "use " << i;
  EXPECT_EQ(queue.id(), 0U) << "asking it for numbers and events gives nothing";
  EXPECT_EQ(queue.completed(), 0U);
  EXPECT_EQ(queue.record(), Event{});
  EXPECT_EQ(refused_argument([&] { taken.run(nullptr, Range{1}, {}); }), "program");
  queue = std::move(taken);
  auto const news = noise(100, 5);
  queue.upload(piece.memory(), news.data(), 100);
  queue.download(host.data(), piece.memory(), 100).wait();
  EXPECT_EQ(host, news) << "it may be assigned to";
}

TEST_P(DeviceConformance, DestroyingAQueueWaitsForItsWork) {
  constexpr std::size_t bytes = 1 << 20;
  Allocated const piece{device(), bytes};
  auto const news = noise(bytes, 4);
  Bytes result(bytes);
  std::vector<Event> events;
  {
    auto queue = device().create_queue();
    for (int i = 0; i < 20; ++i) events.push_back(queue.fill(piece.memory(), repeated(1, 9)));
    events.push_back(queue.upload(piece.memory(), news.data(), bytes));
    events.push_back(queue.download(result.data(), piece.memory(), bytes));
  }
  EXPECT_EQ(result, news);
  for (auto const& event : events) {
    EXPECT_TRUE(event.ready()) << "events outlive their queue";
    EXPECT_EQ(event.wait_for_error(), nullptr);
  }
}

TEST_P(DeviceConformance, SynchronizingTheDeviceWaitsForAllItsQueues) {
  constexpr std::size_t bytes = 1 << 20;
  std::vector<Allocated> pieces;
  std::vector<Queue> queues;
  std::vector<Event> events;
  auto const news = noise(bytes, 5);
  for (int i = 0; i < 4; ++i) {
    pieces.emplace_back(device(), bytes);
    queues.push_back(device().create_queue());
    for (int j = 0; j < 5; ++j) events.push_back(queues.back().upload(pieces.back().memory(), news.data(), bytes));
  }
  device().synchronize();
  for (auto const& event : events) EXPECT_TRUE(event.ready());
  for (auto const& queue : queues) EXPECT_EQ(queue.completed(), 5U);
}

TEST_P(DeviceConformance, AQueueWaitsForAnothersEvent) {
  constexpr std::size_t bytes = 1 << 20;
  Allocated const piece{device(), bytes};
  auto const news = noise(bytes, 6);
  for (int round = 0; round < 10; ++round) {
    auto writer = device().create_queue(), reader = device().create_queue();
    Bytes result(bytes);
    for (int i = 0; i < 5; ++i) writer.fill(piece.memory(), repeated(1, 0));
    auto const written = writer.upload(piece.memory(), news.data(), bytes);
    reader.wait(written);
    reader.wait(reader.record());  // its own: no work
    reader.download(result.data(), piece.memory(), bytes).wait();
    ASSERT_TRUE(written.ready());
    ASSERT_EQ(result, news);
  }
}

TEST_P(DeviceConformance, AnUploadReadsAfterItsQueuesWaits) {
  // Work of the cpu's, which no driver knows of, writes what is uploaded; the second time another queue waits for it.
  constexpr std::size_t bytes = 10'000;
  Allocated const piece{device(), bytes};
  auto& cpu = unimem::device("cpu");
  auto writer = cpu.create_queue();
  for (bool const by_way_of_another : {false, true}) {
    SCOPED_TRACE(by_way_of_another ? "by way of another queue" : "directly");
    Bytes from(bytes), result(bytes);
    auto const late = cpu.compile({"late", "", [&](Range, std::size_t, std::size_t, auto) {
                                     std::this_thread::sleep_for(std::chrono::milliseconds{30});
                                     std::ranges::fill(from, std::byte{7});
                                   }});
    auto queue = device().create_queue(), another = device().create_queue();
    auto const written = writer.run(late, Range{1}, {});
    if (by_way_of_another) {
      another.wait(written);
      queue.wait(another.fill(piece.memory(), repeated(1, 1)));
    } else {
      queue.wait(written);
    }
    queue.upload(piece.memory(), from.data(), bytes);
    queue.download(result.data(), piece.memory(), bytes).wait();
    EXPECT_EQ(result, repeated(bytes, 7));
  }
}

TEST_P(DeviceConformance, WaitsBetweenManyQueuesKeepEveryOrder) {
  // A token of words travels over the queues at random; each hop waits for the one before it and adds one. Nobody but
  // the waits keeps the order.
  constexpr unsigned seed = 2026, hops = 300;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  constexpr std::size_t words = 64;
  Allocated const token{device(), words * sizeof(std::uint32_t)};
  auto const program = device().compile(add_kernel());
  std::vector<Queue> queues;
  for (int i = 0; i < 4; ++i) queues.push_back(device().create_queue());
  std::array const arguments{memory_argument(token.memory()), scalar_argument(std::uint32_t{1})};

  auto last = queues[0].fill(token.memory(), repeated(1, 0));
  std::minstd_rand random{seed};
  for (unsigned hop = 0; hop < hops; ++hop) {
    auto& queue = queues[random() % queues.size()];
    queue.wait(last);
    last = queue.run(program, Range{words}, arguments);
  }
  last.wait();
  std::vector<std::uint32_t> result(words);
  queues[1].download(result.data(), token.memory(), token.memory().bytes).wait();
  EXPECT_THAT(result, ::testing::Each(hops));
}

TEST_P(DeviceConformance, ThreadsShareOneQueue) {
  constexpr std::size_t threads = 4, rounds = 50, bytes = 3001;
  Allocated const piece{device(), threads * bytes};
  auto queue = device().create_queue();
  std::array<std::vector<Ticket>, threads> tickets;
  std::array<std::size_t, threads> wrong{};
  std::vector<std::thread> crowd;
  for (std::size_t t = 0; t < threads; ++t) {
    crowd.emplace_back([&, t] {
      for (std::size_t round = 0; round < rounds; ++round) {
        auto const news = noise(bytes, static_cast<unsigned>(t * rounds + round));
        Bytes result(bytes);
        tickets[t].push_back(queue.upload(piece.window(t * bytes, bytes), news.data(), bytes).ticket());
        auto const done = queue.download(result.data(), piece.window(t * bytes, bytes), bytes);
        tickets[t].push_back(done.ticket());
        done.wait();
        wrong[t] += result != news;
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0U));

  std::vector<Ticket> all;
  for (auto const& mine : tickets) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  std::vector<Ticket> expected(threads * rounds * 2);
  std::iota(expected.begin(), expected.end(), Ticket{1});
  EXPECT_EQ(all, expected) << "every piece of work has a ticket of its own, and none is left out";
}

TEST_P(DeviceConformance, ThreadsHaveQueuesOfTheirOwn) {
  constexpr std::size_t threads = 4, rounds = 20, bytes = 70'001;
  std::array<std::size_t, threads> wrong{};
  std::vector<std::thread> crowd;
  for (std::size_t t = 0; t < threads; ++t) {
    crowd.emplace_back([&, t] {
      for (std::size_t round = 0; round < rounds; ++round) {
        Allocated const piece{device(), bytes};
        auto const news = noise(bytes, static_cast<unsigned>(t * rounds + round));
        Bytes result(bytes);
        auto queue = device().create_queue();
        queue.upload(piece.memory(), news.data(), bytes);
        queue.download(result.data(), piece.memory(), bytes).wait();
        wrong[t] += result != news;
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0U));
}

}  // namespace unimem
