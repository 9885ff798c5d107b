#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/failing_allocations.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "process/shared_ranges.hpp"
#include "processes/device_work.hpp"
#include "processes/peer_commands.hpp"
#include "processes/peer_process.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Whichever allocation fails while processes share a buffer: a typed error, or none; each byte as it was or as it was
// to be, the same for all of them; and no claim is left in the book.

namespace unimem::testing {
namespace {

using detail::Peers;
using detail::Segment;
using detail::SharedRanges;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

class ProcessesOutOfMemory : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  UnifiedBuffer<Byte> made(bool for_others = true) {
    auto options = on_sim();
    options.shared = for_others;
    UnifiedBuffer<Byte> buffer(size, std::move(options));
    buffer.copy_from(pattern_of(size, 1));
    return buffer;
  }
  static SharedRanges::Situation situation(BufferId id) {
    auto parcel = Peers::fetch({id.registry, id.number}).value();
    auto const memory = Segment::adopt(std::move(parcel.descriptors[1]), SharedRanges::bytes(), "itself");
    return SharedRanges::attach({memory.data(), memory.size()}, size, "itself").situation(std::chrono::seconds(1));
  }
  /// Soon: what work was at ends with it.
  static bool claims_go(BufferId id) {
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!situation(id).claims.empty() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return situation(id).claims.empty();
  }
  /// Whether the n-th allocation of this thread was reached, and made it fail.
  struct Outcome {
    bool reached = false, failed = false;
  };
  static Outcome attempt(std::size_t n, std::function<void()> const& operation) {
    Outcome outcome;
    fail_allocation(n);
    try {
      operation();
    } catch (Error const&) {
      outcome.failed = true;
    } catch (std::bad_alloc const&) {
      outcome.failed = true;
    }
    outcome.reached = !allocation_is_to_fail();
    fail_allocation(0);
    return outcome;
  }
  Bytes seen_on_device(UnifiedBuffer<Byte>& buffer) {
    UnifiedBuffer<Byte> result(size, on_sim());
    copy_on(queue, buffer.slice(0, size), result.slice(0, size));
    return result.to_vector();
  }

  BufferRegistry shared;
  Queue queue = sim.create_queue();
  Queue cpu_queue = device("cpu").create_queue();
};

/// What an operation writes; nothing of [0, 1000), where the other process writes before each try.
struct Operation {
  std::string name;
  std::function<void()> call;
  ByteRange writes{};
};

TEST_F(ProcessesOutOfMemory, LeavesNothingHalfNotedAndNoClaim) {
  auto buffer = made(), target = made();
  auto const id = shared.publish(buffer, {.cross_process = true});
  auto const target_id = shared.publish(target, {.cross_process = true});
  PeerProcess peer, witness;
  ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
  ASSERT_EQ(witness.ask("open " + to_string(id)), "ok 4096");
  auto part = buffer.slice(2000, 100);
  Byte value = 0;
  Bytes bytes(100), sink(size);
  std::vector<Operation> const operations{
      {"read", [&] { buffer.copy_to(sink); }},
      {"view", [&] { static_cast<void>(std::as_const(buffer).host_view()); }},
      {"write", [&] { buffer.slice(2000, 100).copy_from(bytes); }, part.range()},
      {"fill", [&] { buffer.slice(2000, 100).fill(value); }, part.range()},
      {"map to read", [&] { static_cast<void>(part.map(MapMode::read)); }},
      {"map to write",
       [&] {
         auto slice = buffer.slice(2000, 100);
         auto mapped = slice.map(MapMode::read_write);
         for (auto& byte : mapped.elements()) byte = value;
         mapped.unmap();
       },
       part.range()},
      {"work that reads a copy", [&] { run_on(queue, {operand(part, Intent::read)}, [](auto const&) {}); }},
      {"work that reads in place", [&] { run_on(cpu_queue, {operand(part, Intent::read)}, [](auto const&) {}); }},
      {"work that writes", [&] { fill_on(queue, part, value); }, part.range()},
      {"work that writes in place", [&] { fill_on(cpu_queue, part, value); }, part.range()},
      {"work that changes",
       [&] {
         run_on(queue, {operand(part, Intent::read_write)}, [&](OperandBytes const& of) {
           for (auto& byte : of[0]) byte = value;
         });
       },
       part.range()},
      {"a lease to read", [&] { static_cast<void>(part.device_view(sim)); }},
      {"a lease to write",
       [&] {
         auto slice = buffer.slice(2000, 100);
         auto const lease = slice.device_overwrite(sim);
         queue.fill(lease.native(), std::vector<std::byte>{static_cast<std::byte>(value)}).wait();
       },
       part.range()},
      {"copy", [&] { copy(buffer.slice(0, 2000), target.slice(0, 2000)); }},
      {"copy to it", [&] { copy(target.slice(0, 100), buffer.slice(2000, 100)); }, part.range()},
      {"prefetch", [&] { static_cast<void>(buffer.prefetch(sim)); }},
      {"to the device", [&] { buffer.sync_to_device(); }},
      {"to the host", [&] { buffer.sync_to_host(); }},
      {"where it is", [&] { static_cast<void>(buffer.valid_on(sim)); }},
      {"evict", [&] { buffer.release_device(sim); }},
      {"synchronize", [&] { buffer.synchronize(); }},
  };
  auto expected = pattern_of(size, 1);
  std::uint32_t seed = 2;
  for (auto const& operation : operations) {
    std::size_t failed = 0;
    bool reached = true;
    for (std::size_t n = 1; reached; ++n, ++seed) {
      SCOPED_TRACE(operation.name + ", allocation " + std::to_string(n) + " fails");
      ASSERT_LT(n, 400U) << "it never passes";
      buffer.sync_to_device();
      for (auto const at : {std::size_t{100}, std::size_t{300}, std::size_t{500}, std::size_t{700}}) {
        ASSERT_EQ(peer.ask("put " + std::to_string(at) + " 50 " + std::to_string(seed)), "ok");
        std::ranges::copy(pattern_of(50, seed), expected.begin() + static_cast<std::ptrdiff_t>(at));
      }
      value = static_cast<Byte>(seed);
      bytes.assign(100, value);
      target.slice(0, 100).fill(value);
      auto const outcome = attempt(n, operation.call);
      reached = outcome.reached;
      failed += outcome.failed ? 1 : 0;
      queue.synchronize();
      cpu_queue.synchronize();
      ASSERT_TRUE(claims_go(id));
      ASSERT_TRUE(claims_go(target_id));
      auto written = expected;
      std::fill(written.begin() + static_cast<std::ptrdiff_t>(operation.writes.begin),
                written.begin() + static_cast<std::ptrdiff_t>(operation.writes.end), value);
      auto const seen = buffer.to_vector();
      ASSERT_TRUE(seen == written || (outcome.failed && seen == expected));
      expected = seen;
      ASSERT_EQ(witness.ask("see 0 4096"), "ok " + told(expected));
      ASSERT_EQ(seen_on_device(buffer), expected);
      buffer.core().validate();
    }
    EXPECT_GT(failed, 0U) << operation.name << " needed no memory";
    RecordProperty(operation.name, static_cast<int>(failed));
  }
}

TEST_F(ProcessesOutOfMemory, NotesWhatADeadWriterLostWithWhy) {
  for (std::size_t n = 1;; ++n) {
    SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails");
    ASSERT_LT(n, 400U);
    auto buffer = made();
    auto const id = shared.publish(buffer, {.cross_process = true});
    buffer.sync_to_device();
    PeerProcess peer;
    ASSERT_EQ(peer.ask("open " + to_string(id)), "ok 4096");
    ASSERT_EQ(peer.ask("put 1000 50 3"), "ok");
    ASSERT_TRUE(peer.ask("map 10 20").starts_with("ok"));
    peer.kill();
    bool lost = false;
    auto const outcome = attempt(n, [&] {
      try {
        static_cast<void>(buffer.slice(29, 1).to_vector());
      } catch (DataLost const&) {
        lost = true;
      }
    });
    EXPECT_TRUE(lost || outcome.failed);
    try {
      static_cast<void>(buffer.slice(10, 1).to_vector());
      ADD_FAILURE() << "it is lost";
    } catch (DataLost const& error) {
      EXPECT_NE(error.cause.find("another process ended"), std::string::npos) << error.what();
    }
    EXPECT_EQ(buffer.slice(1000, 50).to_vector(), pattern_of(50, 3));
    EXPECT_EQ(buffer.slice(30, 100).to_vector(), [] {
      auto const all = pattern_of(size, 1);
      return Bytes(all.begin() + 30, all.begin() + 130);
    }());
    EXPECT_TRUE(claims_go(id));
    shared.release(id);
    if (!outcome.reached) break;
  }
}

TEST_F(ProcessesOutOfMemory, PublishesOrDoesNot) {
  std::size_t failed = 0;
  PeerProcess peer;
  for (std::size_t n = 1;; ++n) {
    SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails");
    ASSERT_LT(n, 400U);
    auto buffer = made(false);
    fill_on(queue, buffer.slice(10, 10), 5).wait();
    auto expected = pattern_of(size, 1);
    std::fill_n(expected.begin() + 10, 10, Byte{5});
    std::optional<BufferId> id;
    auto const outcome = attempt(n, [&] { id = shared.publish(buffer, {.name = "it", .cross_process = true}); });
    EXPECT_NE(outcome.failed, id.has_value());
    failed += outcome.failed ? 1 : 0;
    EXPECT_EQ(shared.size(), outcome.failed ? 0U : 1U);
    shared.validate();
    if (!id) id = shared.publish(buffer, {.name = "it", .cross_process = true});
    EXPECT_EQ(situation(*id).participants.size(), 1U) << "whoever came to nothing holds nothing";
    ASSERT_EQ(peer.ask("open " + to_string(*id)), "ok 4096");
    EXPECT_EQ(peer.ask("see 0 4096"), "ok " + told(expected));
    EXPECT_EQ(peer.ask("put 0 10 9"), "ok");
    EXPECT_EQ(buffer.slice(0, 10).to_vector(), pattern_of(10, 9));
    EXPECT_EQ(peer.ask("close"), "ok");
    buffer.core().validate();
    shared.release(*id);
    if (!outcome.reached) break;
  }
  EXPECT_GT(failed, 10U);
}

TEST_F(ProcessesOutOfMemory, OpensOrDoesNot) {
  std::size_t failed = 0;
  PeerProcess peer;
  auto const published = peer.ask("publish 4096 1").substr(3);
  BufferId const id{std::stoull(published.substr(0, published.find('-')), nullptr, 16),
                    std::stoull(published.substr(published.find('-') + 1))};
  for (std::size_t n = 1;; ++n) {
    SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails");
    ASSERT_LT(n, 600U);
    std::optional<UnifiedBuffer<Byte>> buffer;
    auto const outcome = attempt(n, [&] { buffer = shared.open<Byte>(id); });
    EXPECT_NE(outcome.failed, buffer.has_value());
    failed += outcome.failed ? 1 : 0;
    EXPECT_EQ(situation(id).participants.size(), outcome.failed ? 1U : 2U);
    buffer = shared.open<Byte>(id);
    ASSERT_EQ(peer.ask("put 0 4096 " + std::to_string(n)), "ok");
    EXPECT_EQ(buffer->to_vector(), pattern_of(size, static_cast<std::uint32_t>(n)));
    buffer.reset();
    EXPECT_EQ(situation(id).participants.size(), 1U);
    if (!outcome.reached) break;
  }
  EXPECT_GT(failed, 10U);
}

}  // namespace
}  // namespace unimem::testing
