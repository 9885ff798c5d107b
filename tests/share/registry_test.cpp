#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "forked_child.hpp"
#include "share/namesake.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What `operation` refuses an id with.
template <class Operation>
NotFound not_found(Operation const& operation) {
  try {
    operation();
  } catch (NotFound const& error) {
    return error;
  }
  ADD_FAILURE() << "was found";
  return {"", "", {}};
}

template <class Operation>
InvalidArgument refused(Operation const& operation) {
  try {
    operation();
  } catch (InvalidArgument const& error) {
    return error;
  }
  ADD_FAILURE() << "was not refused";
  return {"", "", ""};
}

/// Of the same name and size as one of another source's anonymous namespace, and of another kind.
struct Pixel {
  std::uint8_t red, green, blue, alpha;
};

class Registries : public BufferTest {
 protected:
  void TearDown() override { shared.validate(); }

  BufferRegistry shared;
};

TEST_F(Registries, OpeningCopiesNothing) {
  auto buffer = synchronized(100, "frame");
  auto const before = buffer.statistics();
  auto opened = shared.open<std::uint32_t>(shared.publish(buffer));
  EXPECT_EQ(&opened.core(), &buffer.core());
  EXPECT_EQ(opened.name(), "frame");
  EXPECT_EQ(std::as_const(opened).host_view().data(), std::as_const(buffer).host_view().data());
  EXPECT_EQ(opened.device_view(sim).data(), buffer.device_view(sim).data());
  EXPECT_EQ(moved(buffer.statistics()), moved(before)) << "no byte moved by opening and looking";

  opened.fill(7, 20, 10);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 20, 10, 7U);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty) << "the one's state is the other's";
  EXPECT_EQ(buffer.to_vector(), expected);
  buffer.host()[0] = 500;
  expected[0] = 500;
  EXPECT_EQ(opened.to_vector(), expected);
  opened.sync_to_device();
  EXPECT_EQ(moved(opened.statistics()), moved(buffer.statistics()));
  EXPECT_EQ(moved(sim.transfers()), moved(buffer.statistics()));
  EXPECT_EQ(device_bytes(opened, sim), expected);
}

TEST_F(Registries, OpenedBuffersHaveThePublishedShape) {
  UnifiedBuffer<float> const volume({3, 0, 5}, on_sim()), matrix({4, 6}, on_sim()), scalar(Shape{}, on_sim());
  auto const solid = shared.open<float>(shared.publish(volume)), flat = shared.open<float>(shared.publish(matrix));
  EXPECT_TRUE(std::ranges::equal(solid.shape(), std::array<std::size_t, 3>{3, 0, 5}));
  EXPECT_TRUE(std::ranges::equal(flat.shape(), std::array<std::size_t, 2>{4, 6}));
  auto const one = shared.open<float>(shared.publish(scalar));
  EXPECT_EQ(one.rank(), 0U);
  EXPECT_EQ(one.size(), 1U);
}

TEST_F(Registries, AnotherElementTypeIsRefusedNamingBoth) {
  UnifiedBuffer<float> const buffer(100, on_sim("weights"));
  auto const id = shared.publish(buffer);
  auto const same_size = refused([&] { std::ignore = shared.open<std::int32_t>(id); });
  EXPECT_EQ(same_size.argument, "element type");
  EXPECT_EQ(same_size.value, "int (4 bytes)");
  EXPECT_EQ(same_size.requirement, "float (4 bytes), as buffer 'weights' has them");
  EXPECT_EQ(refused([&] { std::ignore = shared.open<double>(id); }).value, "double (8 bytes)");
  EXPECT_EQ(refused([&] { std::ignore = shared.open<std::byte>(id); }).value, "std::byte (1 byte)");
  EXPECT_EQ(refused([&] { std::ignore = shared.resolve<std::int32_t>({id}); }).value, "int (4 bytes)");
  EXPECT_EQ(shared.statistics().refused, 4U);
  EXPECT_EQ(shared.statistics().opened, 0U);
  EXPECT_EQ(shared.open<float>(id).size(), 100U);
}

TEST_F(Registries, AnotherTypeOfTheSameNameIsAnother) {
  auto const id = publish_namesake(shared, on_sim("image"));
  auto const error = refused([&] { std::ignore = shared.open<Pixel>(id); });
  EXPECT_EQ(error.argument, "element type");
  EXPECT_THAT(error.requirement, HasSubstr("as buffer 'image' has them: another type of that name"));
  refused([&] { std::ignore = shared.resolve<Pixel>({id}); });
  EXPECT_TRUE(opens_namesake(shared, id)) << "it is that source's own";
  UnifiedBuffer<Pixel> const own(4, on_sim());
  EXPECT_EQ(shared.open<Pixel>(shared.publish(own)).size(), 4U);
}

TEST_F(Registries, UnknownIdsAreNotFoundWithTheReason) {
  auto const buffer = synchronized();
  auto const id = shared.publish(buffer), released = shared.publish(buffer);
  shared.release(released);
  BufferRegistry other_registry;
  auto const foreign = other_registry.publish(buffer);
  struct Case {
    BufferId id;
    char const* reason;
  };
  for (auto const& [unknown, reason] : {
           Case{{}, "the id names nothing"},
           Case{{id.registry, 0}, "the id names nothing"},
           Case{{0, id.number}, "the id names nothing"},
           Case{released, "it was released"},
           Case{{id.registry, released.number + 1}, "no such id was given"},
           Case{{id.registry, ~std::uint64_t{0}}, "no such id was given"},
           Case{foreign,
                "its id is another registry's, and no process of this user has a buffer of that id for others"},
           Case{{id.registry ^ 1U, id.number},
                "its id is another registry's, and no process of this user has a buffer of that id for others"},
       }) {
    SCOPED_TRACE(to_string(unknown));
    for (auto const& error :
         {not_found([&] { std::ignore = shared.open<std::uint32_t>(unknown); }),
          not_found([&] { std::ignore = shared.resolve<std::uint32_t>({unknown, 0, 1}); }),
          not_found([&] { std::ignore = shared.refer(unknown); }), not_found([&] { shared.release(unknown); })}) {
      EXPECT_EQ(error.kind, "published buffer");
      EXPECT_EQ(error.name, to_string(unknown));
      EXPECT_EQ(error.reason, reason);
      EXPECT_THAT(error.available, ElementsAre(to_string(id)));
    }
    EXPECT_FALSE(shared.contains(unknown));
  }
  EXPECT_TRUE(shared.contains(id));
  EXPECT_EQ(shared.statistics().refused, 8U * 4);
  EXPECT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(100));
}

TEST_F(Registries, AnErrorListsPublishedNames) {
  auto const buffer = synchronized();
  for (int i = 0; i < 100; ++i) std::ignore = shared.publish(buffer, {.name = "frame " + std::to_string(i)});
  auto const error = not_found([&] { std::ignore = shared.find("frame"); });
  EXPECT_EQ(error.name, "frame");
  EXPECT_EQ(error.available.size(), 8U);
  EXPECT_THAT(error.available.front(), "frame 0");
  EXPECT_EQ(error.reason, "92 more are published");
}

TEST_F(Registries, NoIdIsGivenTwice) {
  UnifiedBuffer<std::byte> const buffer(1, on_sim());
  std::set<BufferId> seen;
  std::array<BufferRegistry, 10> registries;
  for (int i = 0; i < 10'000; ++i) {
    auto& one = registries[static_cast<std::size_t>(i) % registries.size()];
    auto const id = one.publish(buffer);
    ASSERT_TRUE(static_cast<bool>(id));
    ASSERT_TRUE(seen.insert(id).second) << to_string(id);
    one.release(id);
  }
}

TEST_F(Registries, ABufferPublishedTwiceHasTwoIds) {
  auto const buffer = synchronized();
  auto const first_id = shared.publish(buffer), second_id = shared.publish(buffer);
  EXPECT_NE(first_id, second_id);
  shared.release(first_id);
  EXPECT_FALSE(shared.contains(first_id));
  EXPECT_EQ(&shared.open<std::uint32_t>(second_id).core(), &buffer.core());
}

TEST_F(Registries, ANameIsGivenOnceAtATime) {
  auto const buffer = synchronized(), another = synchronized(10);
  auto const id = shared.publish(buffer, {.name = "frame"});
  EXPECT_EQ(shared.find("frame"), id);
  auto const taken = refused([&] { std::ignore = shared.publish(another, {.name = "frame"}); });
  EXPECT_EQ(taken.argument, "name");
  EXPECT_EQ(taken.value, "frame");
  EXPECT_EQ(shared.size(), 1U) << "nothing was published";
  EXPECT_EQ(not_found([&] { std::ignore = shared.find(""); }).kind, "published buffer");

  shared.release(id);
  EXPECT_EQ(not_found([&] { std::ignore = shared.find("frame"); }).name, "frame");
  auto const next = shared.publish(another, {.name = "frame"});
  EXPECT_EQ(shared.find("frame"), next);
  EXPECT_NE(next, id);
  EXPECT_EQ(shared.open<std::uint32_t>(shared.find("frame")).size(), 10U);
}

TEST_F(Registries, AListHasBuffersAndTheirHandles) {
  struct Rgb {
    std::uint8_t red, green, blue;
  };
  UnifiedBuffer<Rgb> const image({4, 6}, on_sim("image"));
  UnifiedBuffer<double> const numbers(10, on_sim());
  auto const image_id = shared.publish(image, {.name = "picture"}), numbers_id = shared.publish(numbers);
  auto const opened = shared.open<double>(numbers_id);
  auto const slice = shared.resolve<double>({numbers_id, 2, 3});
  std::ignore = shared.open<double>(numbers_id);

  auto const list = shared.list();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].id, image_id);
  EXPECT_EQ(list[0].name, "picture");
  EXPECT_EQ(list[0].buffer, "image");
  EXPECT_THAT(list[0].element, HasSubstr("Rgb"));
  EXPECT_EQ(list[0].tag, ElementTag::other);
  EXPECT_EQ(list[0].element_bytes, 3U);
  EXPECT_EQ(list[0].shape, Shape({4, 6}));
  EXPECT_EQ(list[0].bytes, 72U);
  EXPECT_EQ(list[0].opened, 0U);
  EXPECT_EQ(list[0].holders, 1U) << "who published it";
  EXPECT_EQ(list[1].id, numbers_id);
  EXPECT_EQ(list[1].name, "");
  EXPECT_EQ(list[1].element, "double");
  EXPECT_EQ(list[1].tag, ElementTag::f64);
  EXPECT_EQ(list[1].opened, 3U);
  EXPECT_EQ(list[1].holders, 3U) << "the buffer, what was opened, the slice";
}

TEST_F(Registries, CountsAddUp) {
  auto const buffer = synchronized();
  auto const first_id = shared.publish(buffer), second_id = shared.publish(buffer);
  std::ignore = shared.open<std::uint32_t>(first_id);
  std::ignore = shared.resolve<std::uint32_t>({second_id});
  EXPECT_THROW(std::ignore = shared.resolve({second_id, 101, 0}), InvalidArgument);
  EXPECT_THROW(std::ignore = shared.refer(second_id, 0, 101), InvalidArgument);
  EXPECT_THROW(std::ignore = shared.find("nothing"), NotFound);
  shared.release(first_id);
  EXPECT_THROW(shared.release(first_id), NotFound);
  auto const counts = shared.statistics();
  EXPECT_EQ(counts.published, 2U);
  EXPECT_EQ(counts.released, 1U);
  EXPECT_EQ(counts.opened, 2U);
  EXPECT_EQ(counts.refused, 4U);
  EXPECT_EQ(shared.size(), counts.published - counts.released);
}

TEST_F(Registries, CallersWithoutTypesNameTheirElementsThemselves) {
  auto const buffer = synchronized();
  detail::SharedElement const element{Name{"float32"}, 4, ElementTag::f32};
  auto const id = shared.publish_core({buffer.shared_core(), Shape(100)}, element, {});
  EXPECT_EQ(shared.open_core(id, element).core, buffer.shared_core());
  EXPECT_EQ(shared.refer(id, 3, 4), (BufferRef{id, 3, 4, ElementTag::f32}));
  EXPECT_EQ(shared.resolve_core({id, 3, 4}, &element).range, (ByteRange{12, 28}));
  EXPECT_EQ(refused([&] { std::ignore = shared.open<float>(id); }).requirement.substr(0, 17), "float32 (4 bytes)");
  EXPECT_EQ(refused([&] {
              std::ignore = shared.publish_core({buffer.shared_core(), Shape(100)}, {Name{"void"}, 0}, {});
            }).argument,
            "element size");
}

TEST_F(Registries, CallersWithoutATypeAreBelievedByName) {
  UnifiedBuffer<float> const buffer(4, on_sim());
  detail::SharedElement const element{Name{typeid(float).name()}, 4, ElementTag::f32};
  EXPECT_EQ(shared.open_core(shared.publish(buffer), element).core, buffer.shared_core());
  auto const id = shared.publish_core({buffer.shared_core(), Shape(4)}, element, {});
  EXPECT_EQ(shared.open<float>(id).size(), 4U);
}

TEST_F(Registries, NoElementsArePublishedToo) {
  UnifiedBuffer<float> const nothing(0, on_sim());
  auto const id = shared.publish(nothing);
  EXPECT_EQ(shared.open<float>(id).size(), 0U);
  EXPECT_TRUE(shared.resolve<float>({id, 0, 0}).empty());
  EXPECT_TRUE(shared.resolve<float>({id}).empty());
  EXPECT_THROW(std::ignore = shared.resolve<float>({id, 0, 1}), InvalidArgument);
}

TEST_F(Registries, TheProcessHasOne) {
  EXPECT_EQ(&registry(), &registry());
  auto const buffer = synchronized();
  auto const id = registry().publish(buffer);
  EXPECT_EQ(BufferRef({id, 10, 5}).resolve<std::uint32_t>().to_vector(), counting(5, 10));
  EXPECT_FALSE(shared.contains(id));
  registry().release(id);
  EXPECT_THROW(std::ignore = BufferRef({id, 10, 5}).resolve<std::uint32_t>(), NotFound);
}

TEST_F(Registries, ThreadsPublishOpenListAndReleaseAtOnce) {
  constexpr std::uint32_t threads = 8, rounds = 300;
  std::barrier start{threads};
  {
    std::vector<std::jthread> running;
    for (std::uint32_t thread = 0; thread < threads; ++thread) {
      running.emplace_back([&, thread] {
        auto const name = "of " + std::to_string(thread);
        start.arrive_and_wait();
        for (std::uint32_t round = 0; round < rounds; ++round) {
          UnifiedBuffer<std::uint32_t> mine(16, on_sim());
          mine.copy_from(counting(16, thread * rounds + round));
          auto const id = shared.publish(mine, {.name = name});
          ASSERT_EQ(shared.find(name), id);
          ASSERT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(16, thread * rounds + round));
          ASSERT_EQ(shared.resolve<std::uint32_t>({id, 8, 4}).to_vector(), counting(4, thread * rounds + round + 8));
          if (round % 16 == 0) {
            ASSERT_LE(shared.list().size(), threads);
          }
          shared.release(id);
          ASSERT_FALSE(shared.contains(id));
        }
      });
    }
  }
  EXPECT_EQ(shared.size(), 0U);
  EXPECT_EQ(shared.statistics().published, std::uint64_t{threads} * rounds);
  EXPECT_EQ(shared.statistics().opened, std::uint64_t{threads} * rounds * 2);
}

TEST_F(Registries, ListingDuringAResizeIsSafe) {
  auto buffer = synchronized(100);
  std::ignore = shared.publish(buffer);
  std::atomic<bool> over{false};
  std::jthread const resizing{[&] {
    for (std::size_t round = 0; round < 500; ++round) buffer.resize(round % 2 == 0 ? 150 : 100);
    over = true;
  }};
  do {
    auto const told = shared.list().front();
    ASSERT_TRUE(told.bytes == 400 || told.bytes == 600) << told.bytes;
    ASSERT_EQ(told.shape, Shape(told.bytes / 4)) << "of one moment";
  } while (!over);
}

TEST_F(Registries, ConcurrentReleasesOfAnIdSucceedOnce) {
  constexpr int threads = 6;
  for (int round = 0; round < 100; ++round) {
    auto const id = shared.publish(synchronized());  // held by the registry alone
    std::barrier start{threads};
    std::atomic<int> released{0}, opened{0};
    {
      std::vector<std::jthread> running;
      for (int thread = 0; thread < threads; ++thread) {
        running.emplace_back([&, thread] {
          start.arrive_and_wait();
          try {
            if (thread % 2 == 0) {
              shared.release(id);
              ++released;
            } else {
              ASSERT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(100));
              ++opened;
            }
          } catch (NotFound const& error) {
            ASSERT_EQ(error.reason, "it was released");
          }
        });
      }
    }
    ASSERT_EQ(released, 1);
    ASSERT_LE(opened, threads / 2);
  }
}

TEST_F(Registries, AForkedChildHasItsOwnIds) {
  auto const buffer = synchronized();
  auto const id = shared.publish(buffer, {.name = "frame"}), in_process = registry().publish(buffer);
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  EXPECT_EQ(
      in_child([&] {
        EXPECT_HERE(!shared.contains(id) && !registry().contains(in_process));
        EXPECT_HERE(shared.list().empty() && shared.size() == 0);
        try {
          std::ignore = shared.open<std::uint32_t>(id);
          EXPECT_HERE(false);
        } catch (NotFound const& error) {
          EXPECT_HERE(error.reason ==
                      "its id is another registry's, and no process of this user has a buffer of that id for others");
        }
        UnifiedBuffer<std::uint32_t> own(10);
        own.copy_from(counting(10, 5));
        auto const own_id = shared.publish(own, {.name = "frame"});
        EXPECT_HERE(shared.open<std::uint32_t>(own_id).to_vector() == counting(10, 5));
        EXPECT_HERE(write(pipe_ends[1], &own_id, sizeof own_id) == sizeof own_id);
        shared.validate();
        return 7;
      }),
      7);
  close(pipe_ends[1]);  // a child that has written nothing must not be waited for
  BufferId of_child;
  ASSERT_EQ(read(pipe_ends[0], &of_child, sizeof of_child), static_cast<ssize_t>(sizeof of_child));
  close(pipe_ends[0]);
  EXPECT_TRUE(static_cast<bool>(of_child));
  EXPECT_EQ(not_found([&] { std::ignore = shared.open<std::uint32_t>(of_child); }).reason,
            "its id is another registry's, and no process of this user has a buffer of that id for others");
  EXPECT_EQ(shared.find("frame"), id) << "the parent goes on as if nothing had been";
  EXPECT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(100));
  registry().release(in_process);
}

TEST(BufferIds, AreValuesWithATextOfTheirOwn) {
  EXPECT_EQ(to_string(BufferId{0x00C0'FFEE'1590'0D1D, 42}), "00c0ffee15900d1d-42");
  EXPECT_EQ(to_string(BufferId{}), "none");
  EXPECT_FALSE(static_cast<bool>(BufferId{}));
  EXPECT_LT((BufferId{1, 2}), (BufferId{1, 3}));
  std::set<std::size_t> hashes;
  for (std::uint64_t i = 1; i <= 1000; ++i) hashes.insert(std::hash<BufferId>{}(BufferId{7, i}));
  EXPECT_EQ(hashes.size(), 1000U);
}

}  // namespace
}  // namespace unimem::testing
