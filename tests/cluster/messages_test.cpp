#include "cluster/counted_calls.hpp"
#include "cluster/ranks.hpp"

#include <unimem/core/error.hpp>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

// What is sent from one rank is what another receives, from wherever it is current; what does not fit changes nothing.

namespace unimem::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Messages : public RanksTest {
 protected:
  void SetUp() override {
    if (!has_partner()) GTEST_SKIP() << "there is no rank to talk to";
  }
};

TEST_F(Messages, HostBytesArriveAndNothingElseMoves) {
  for (std::size_t const count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    if (is_first()) {
      auto x = holding(numbers_of(rank(), count));
      reset_counted_calls();
      mpi::send(read(x), partner(), tag);
      EXPECT_EQ(counted_calls().sends, 1U);
      EXPECT_EQ(counted_calls().sent_bytes, x.size_bytes());
      EXPECT_EQ(x.statistics().traffic(), Traffic{});
    } else {
      UnifiedBuffer<std::uint32_t> y(count, on_sim());
      EXPECT_EQ(mpi::receive(write(y), partner(), tag), (mpi::Received{partner(), tag, y.size_bytes()}));
      EXPECT_THAT(y.to_vector(), ElementsAreArray(numbers_of(partner(), count)));
      EXPECT_EQ(y.statistics().traffic(), Traffic{});
    }
  }
}

TEST_F(Messages, APartArrivesInAPart) {
  if (is_first()) {
    auto x = holding(numbers_of<double>(rank(), 100));
    mpi::send(read(x, 10, 20), partner(), tag);
    mpi::send(read(x.slice(50, 3)), partner(), tag);
  } else {
    auto y = holding(std::vector<double>(100, -1.0));
    auto expected = std::vector<double>(100, -1.0);
    auto const sent = numbers_of<double>(partner(), 100);
    std::copy_n(sent.begin() + 10, 20, expected.begin() + 5);
    std::copy_n(sent.begin() + 50, 3, expected.begin() + 90);
    auto part = y.slice(90, 3);
    mpi::receive(write(y, 5, 20), partner(), tag);
    mpi::receive(write(part), partner(), tag);
    EXPECT_THAT(y.to_vector(), ElementsAreArray(expected));
  }
}

TEST_F(Messages, DeviceBytesComeToTheHostOnce) {
  if (is_first()) {
    auto x = holding_on_device<std::uint32_t>(7, 1000);
    mpi::send(read(x), partner(), tag);
    mpi::send(read(x), partner(), tag);
    EXPECT_EQ(x.statistics().device_to_host_bytes, x.size_bytes());
    EXPECT_EQ(x.statistics().device_to_host_copies, 1U);
  } else {
    UnifiedBuffer<std::uint32_t> y(1000, on_sim());
    for (int i = 0; i < 2; ++i) {
      mpi::receive(write(y), partner(), tag);
      EXPECT_THAT(y.to_vector(), ElementsAreArray(counting<std::uint32_t>(7, 1000)));
    }
  }
}

TEST_F(Messages, WhatIsReceivedGoesToTheDeviceWhenItIsUsedThere) {
  if (is_first()) {
    auto x = holding(counting<std::uint32_t>(1, 64));
    mpi::send(read(x), partner(), tag);
  } else {
    auto y = holding_on_device<std::uint32_t>(500, 64);
    mpi::receive(write(y), partner(), tag);
    EXPECT_EQ(y.state(), BufferState::host_dirty);
    EXPECT_EQ(y.statistics().device_to_host_bytes, 0U) << "all of it was overwritten";
    launch(sim.default_queue(), Kernel("twice").host([](WorkItem i, std::span<std::uint32_t> v) { v[i.x] *= 2; }),
           Range{64}, readwrite(y));
    auto expected = counting<std::uint32_t>(1, 64);
    for (auto& number : expected) number *= 2;
    EXPECT_THAT(y.to_vector(), ElementsAreArray(expected));
    EXPECT_EQ(y.statistics().host_to_device_bytes, y.size_bytes());
  }
}

TEST_F(Messages, MuchOnADeviceGoesInPiecesThroughPinnedBlocks) {
  constexpr std::size_t count = 10'000'001;
  constexpr std::size_t piece = std::size_t{1} << 20;
  if (is_first()) {
    auto x = holding_on_device<std::uint8_t>(3, count);
    reset_counted_calls();
    mpi::send(read(x), partner(), tag, MPI_COMM_WORLD, {.piece_bytes = piece});
    EXPECT_EQ(counted_calls().sends, 1 + (count + piece - 1) / piece) << "a header, and the pieces";
    EXPECT_EQ(counted_calls().sent_bytes, sizeof(mpi::detail::PieceHeader) + count);
    EXPECT_EQ(x.statistics().device_to_host_bytes, count);
    EXPECT_EQ(x.statistics().device_to_host_copies, (count + piece - 1) / piece);
    EXPECT_EQ(x.state(), BufferState::device_dirty);
    EXPECT_FALSE(x.valid_on_host()) << "the buffer needed no host memory";
  } else {
    UnifiedBuffer<std::uint8_t> y(count, on_sim());
    EXPECT_EQ(mpi::receive(write(y), partner(), tag), (mpi::Received{partner(), tag, count}));
    EXPECT_EQ(y.to_vector(), counting<std::uint8_t>(3, count));
  }
}

TEST_F(Messages, APeerThatCallsMpiItselfIsUnderstood) {
  constexpr int count = 3000;
  if (is_first()) {
    auto x = holding_on_device<std::int32_t>(-4, count);
    mpi::send(read(x), partner(), tag, MPI_COMM_WORLD, {});
    auto const more = counting<float>(1.5F, count);
    MPI_Send(more.data(), count, MPI_FLOAT, partner(), tag, MPI_COMM_WORLD);
  } else {
    std::vector<std::int32_t> plain(count);
    MPI_Status status;
    MPI_Recv(plain.data(), count, MPI_INT32_T, partner(), tag, MPI_COMM_WORLD, &status);
    EXPECT_THAT(plain, ElementsAreArray(counting<std::int32_t>(-4, count)));
    UnifiedBuffer<float> y(count, on_sim());
    mpi::receive(write(y), MPI_ANY_SOURCE, MPI_ANY_TAG);
    EXPECT_THAT(y.to_vector(), ElementsAreArray(counting<float>(1.5F, count)));
  }
}

TEST_F(Messages, AMessageOfAnotherSizeChangesNothingAndIsGone) {
  for (std::size_t const count : {std::size_t{99}, std::size_t{101}, std::size_t{1} << 20}) {
    if (is_first()) {
      auto x = holding(numbers_of(rank(), count));
      auto z = holding(numbers_of(rank(), 100));
      mpi::send(read(x), partner(), tag);
      mpi::send(read(z), partner(), tag);
    } else {
      auto y = holding(std::vector<std::uint32_t>(100, 42));
      try {
        mpi::receive(write(y), partner(), tag);
        FAIL() << "a message of another size was received";
      } catch (SizeMismatch const& error) {
        EXPECT_EQ(error.expected, 100U);
        EXPECT_EQ(error.actual, count);
        EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(partner()) + " with tag 5"));
      }
      EXPECT_THAT(y.to_vector(), ElementsAreArray(std::vector<std::uint32_t>(100, 42)));
      mpi::receive(write(y), partner(), tag);
      EXPECT_THAT(y.to_vector(), ElementsAreArray(numbers_of(partner(), 100)));
    }
  }
}

TEST_F(Messages, PiecesThatDoNotFitChangeNothingAndAreGone) {
  if (is_first()) {
    auto x = holding_on_device<std::uint32_t>(1, 1000);
    mpi::send(read(x), partner(), tag, MPI_COMM_WORLD, {.piece_bytes = 1024});
    mpi::send(read(x), partner(), tag, MPI_COMM_WORLD, {.piece_bytes = 1024});
    mpi::send(read(x), partner(), tag, MPI_COMM_WORLD, {.piece_bytes = 1024});
  } else {
    auto y = holding(std::vector<std::uint32_t>(999, 42));
    EXPECT_THROW(mpi::receive(write(y), partner(), tag), SizeMismatch);
    EXPECT_THAT(y.to_vector(), ElementsAreArray(std::vector<std::uint32_t>(999, 42)));
    UnifiedBuffer<float> other(1000, on_sim());
    EXPECT_THAT([&] { mpi::receive(write(other), partner(), tag); },
                ThrowsMessage<SizeMismatch>(HasSubstr("another type")));
    UnifiedBuffer<std::uint32_t> z(1000, on_sim());
    mpi::receive(write(z), partner(), tag);
    EXPECT_THAT(z.to_vector(), ElementsAreArray(counting<std::uint32_t>(1, 1000)));
  }
}

TEST_F(Messages, ElementsOfAnotherSizeAreFoundOut) {
  if (is_first()) {
    auto x = holding(std::vector<std::uint8_t>(13, 9));
    mpi::send(read(x), partner(), tag);
  } else {
    auto y = holding(std::vector<std::uint32_t>(3, 42));
    EXPECT_THAT([&] { mpi::receive(write(y), partner(), tag); },
                ThrowsMessage<SizeMismatch>(HasSubstr("expected 12 bytes, got 13")));
    EXPECT_THAT(y.to_vector(), ElementsAreArray(std::vector<std::uint32_t>(3, 42)));
  }
}

TEST_F(Messages, BytesThatLookLikeAHeaderAreBytes) {
  constexpr auto size = sizeof(mpi::detail::PieceHeader);
  if (is_first()) {
    auto x = holding(numbers_of<std::uint8_t>(rank(), size));
    mpi::send(read(x), partner(), tag);
    mpi::send(read(x), partner(), tag);
  } else {
    UnifiedBuffer<std::uint8_t> y(size, on_sim());
    mpi::receive(write(y), partner(), tag);
    EXPECT_THAT(y.to_vector(), ElementsAreArray(numbers_of<std::uint8_t>(partner(), size)));
    auto z = holding(std::vector<std::uint8_t>(7, 1));
    EXPECT_THROW(mpi::receive(write(z), partner(), tag), SizeMismatch);
    EXPECT_THAT(z.to_vector(), ElementsAreArray(std::vector<std::uint8_t>(7, 1)));
  }
}

TEST_F(Messages, StructuresTravelAsBytes) {
  struct Particle {
    double position[3];
    std::int16_t kind;
    bool operator==(Particle const&) const = default;
  };
  std::vector<Particle> particles(77);
  std::memset(static_cast<void*>(particles.data()), 0, particles.size() * sizeof(Particle));
  for (std::size_t i = 0; i < particles.size(); ++i) particles[i].position[1] = static_cast<double>(i);
  if (is_first()) {
    auto x = holding(particles);
    mpi::send(read(x), partner(), tag);
  } else {
    UnifiedBuffer<Particle> y(particles.size(), on_sim());
    mpi::receive(write(y), partner(), tag);
    EXPECT_EQ(y.to_vector(), particles);
  }
}

TEST_F(Messages, AMessageWaitsForTheKernelThatWritesIt) {
  if (is_first()) {
    UnifiedBuffer<std::uint32_t> x(100, on_sim());
    auto const slow = Kernel("slow").host([](WorkItem i, std::span<std::uint32_t> v) {
      if (i.x == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      v[i.x] = 9;
    });
    launch(sim.default_queue(), slow, Range{100}, write(x));
    mpi::send(read(x), partner(), tag);
  } else {
    UnifiedBuffer<std::uint32_t> y(100, on_sim());
    mpi::receive(write(y), partner(), tag);
    EXPECT_THAT(y.to_vector(), ElementsAreArray(std::vector<std::uint32_t>(100, 9)));
  }
}

TEST_F(Messages, AFailedKernelSendsNothing) {
  if (is_first()) {
    auto x = holding(counting<std::uint32_t>(3, 10));
    auto const fails = Kernel("fails").host([](WorkItem, std::span<std::uint32_t>) { throw std::runtime_error("no"); });
    launch(sim.default_queue(), fails, Range{10}, readwrite(x));
    reset_counted_calls();
    EXPECT_THROW(mpi::send(read(x), partner(), tag), std::runtime_error);
    EXPECT_EQ(counted_calls().sends, 0U);
    mpi::send(read(x), partner(), tag);
  } else {
    UnifiedBuffer<std::uint32_t> y(10, on_sim());
    mpi::receive(write(y), partner(), tag);
    EXPECT_THAT(y.to_vector(), ElementsAreArray(counting<std::uint32_t>(3, 10)));
  }
}

TEST_F(Messages, TheHandlerOfErrorsIsTheProgramsAgain) {
  MPI_Errhandler before = MPI_ERRHANDLER_NULL;
  MPI_Errhandler after = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  if (is_first()) {
    auto x = holding(numbers_of(rank(), 10));
    mpi::send(read(x), partner(), tag);
  } else {
    UnifiedBuffer<std::uint32_t> y(9, on_sim());
    EXPECT_THROW(mpi::receive(write(y), partner(), tag), SizeMismatch);
  }
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
  EXPECT_EQ(before, after);
  EXPECT_EQ(after, MPI_ERRORS_ARE_FATAL);
}

using BadArguments = RanksTest;

TEST_F(BadArguments, RanksTagsAndCommunicatorsAreChecked) {
  auto x = holding(numbers_of(rank(), 10));
  auto const invalid = [](char const* name) { return ::testing::Field("argument", &InvalidArgument::argument, name); };
  auto const expect = [&](auto const& call, char const* name, char const* value) {
    try {
      call();
      FAIL() << name << " was accepted";
    } catch (InvalidArgument const& error) {
      EXPECT_THAT(error, invalid(name));
      EXPECT_EQ(error.value, value);
    }
  };
  auto const beyond = std::to_string(ranks());
  expect([&] { mpi::send(read(x), ranks(), tag); }, "to", beyond.c_str());
  expect([&] { mpi::send(read(x), MPI_ANY_SOURCE, tag); }, "to", std::to_string(MPI_ANY_SOURCE).c_str());
  expect([&] { mpi::send(read(x), 0, -7); }, "tag", "-7");
  expect([&] { mpi::send(read(x), 0, MPI_ANY_TAG); }, "tag", std::to_string(MPI_ANY_TAG).c_str());
  expect([&] { mpi::send(read(x), 0, mpi::detail::highest_tag() + 1); }, "tag",
         std::to_string(mpi::detail::highest_tag() + 1).c_str());
  expect([&] { mpi::send(read(x), 0, tag, MPI_COMM_NULL); }, "comm", "MPI_COMM_NULL");
  expect([&] { mpi::receive(write(x), ranks(), tag); }, "from", beyond.c_str());
  expect([&] { mpi::receive(write(x), 0, -7); }, "tag", "-7");
  expect([&] { mpi::send(write(x), 0, tag); }, "what is sent", "write(…)");
  expect([&] { mpi::receive(read(x), 0, tag); }, "what receives", "read(…)");
  expect([&] { mpi::send(read(x), 0, tag, MPI_COMM_WORLD, {.piece_bytes = std::size_t{1} << 31}); }, "piece_bytes",
         "2147483648");
  EXPECT_THAT(x.to_vector(), ElementsAreArray(numbers_of(rank(), 10)));
}

TEST_F(BadArguments, NoRankSendsAndReceivesNothing) {
  auto x = holding(numbers_of(rank(), 10));
  reset_counted_calls();
  mpi::send(read(x), MPI_PROC_NULL, tag);
  EXPECT_EQ(counted_calls().sends, 0U);
  EXPECT_EQ(mpi::receive(write(x), MPI_PROC_NULL, tag), (mpi::Received{MPI_PROC_NULL, MPI_ANY_TAG, 0}));
  EXPECT_THAT(x.to_vector(), ElementsAreArray(numbers_of(rank(), 10)));
}

using Counts = RanksTest;

TEST_F(Counts, MoreElementsThanACallTakesAreOneMessage) {
  constexpr int most = 1000;
  for (std::size_t const count :
       {std::size_t{999}, std::size_t{1000}, std::size_t{1001}, std::size_t{3000}, std::size_t{12'345}}) {
    mpi::detail::Counted const what(count, {MPI_INT16_T, 2, true}, most);
    EXPECT_LE(what.count(), most);
    MPI_Count bytes = 0;
    MPI_Type_size_x(what.type(), &bytes);
    EXPECT_EQ(static_cast<std::size_t>(bytes * what.count()), count * 2);
    auto const sent = numbers_of<std::int16_t>(rank(), count);
    std::vector<std::int16_t> received(count, -1);
    MPI_Status status;
    MPI_Sendrecv(sent.data(), what.count(), what.type(), rank(), tag, received.data(), static_cast<int>(count),
                 MPI_INT16_T, rank(), tag, MPI_COMM_WORLD, &status);
    EXPECT_EQ(received, sent);
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    EXPECT_EQ(static_cast<std::size_t>(bytes), count * 2);
  }
}

TEST_F(Counts, MemoryKindsAreReadAsMpiSpellsThem) {
  EXPECT_TRUE(mpi::detail::names_cuda("system,cuda:device,mpi"));
  EXPECT_TRUE(mpi::detail::names_cuda("cuda"));
  EXPECT_FALSE(mpi::detail::names_cuda("system,cuda:host,mpi"));
  EXPECT_FALSE(mpi::detail::names_cuda("system,mpi"));
  EXPECT_FALSE(mpi::detail::names_cuda(""));
}

}  // namespace
}  // namespace unimem::testing
