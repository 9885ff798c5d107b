#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <complex>
#include <cstddef>
#include <optional>

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;

struct Particle {
  double position[3];
  float mass;
  std::int16_t kind;
  friend bool operator==(Particle const&, Particle const&) = default;
};

template <class T>
T element(std::size_t i) {
  if constexpr (std::is_same_v<T, Particle>) {
    auto const d = static_cast<double>(i);
    return {{d, d / 2, -d}, static_cast<float>(i), static_cast<std::int16_t>(i)};
  } else if constexpr (std::is_same_v<T, std::byte>) {
    return static_cast<std::byte>(i);
  } else if constexpr (std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>) {
    using Part = typename T::value_type;
    return {static_cast<Part>(i), -static_cast<Part>(i)};
  } else {
    return static_cast<T>(i);
  }
}

template <class T>
class ElementTypes : public BufferTest {};

using Kinds =
    ::testing::Types<float, double, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                     std::int64_t, std::uint64_t, std::complex<float>, std::complex<double>, std::byte, Particle>;
TYPED_TEST_SUITE(ElementTypes, Kinds);

TYPED_TEST(ElementTypes, TravelBothWaysUnchangedAndAreFilledWhole) {
  using T = TypeParam;
  std::vector<T> values(101);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = element<T>(i);
  UnifiedBuffer<T> buffer(values.size(), this->on_sim());
  EXPECT_EQ(buffer.size_bytes(), values.size() * sizeof(T));
  buffer.copy_from(values);
  buffer.sync_to_device();
  EXPECT_EQ(this->device_bytes(buffer, this->sim), values);
  {
    auto const lease = buffer.device();
    lease.data()[100] = element<T>(7);
  }
  values[100] = element<T>(7);
  EXPECT_EQ(buffer.to_vector(), values);
  auto const bytes = values.size() * sizeof(T);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{bytes, 1, bytes, 1}));
  buffer.fill(element<T>(3), 10, 20);
  std::fill_n(values.begin() + 10, 20, element<T>(3));
  EXPECT_EQ(buffer.to_vector(), values);
  EXPECT_EQ(this->device_bytes(buffer, this->sim), values);
}

class Elements : public BufferTest {};

TEST_F(Elements, AreIteratedAndSetInPlace) {
  auto buffer = synchronized();
  EXPECT_EQ(std::as_const(buffer).at(42), 42U);
  EXPECT_EQ(buffer.state(), BufferState::synchronized) << "looking at one is no write";
  buffer.at(42) = 7;
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  std::uint64_t sum = 0;
  for (auto const value : buffer.host_view()) sum += value;
  EXPECT_EQ(sum, 4950U - 42 + 7);
  EXPECT_EQ(device_bytes(buffer, sim)[42], 7U);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{404, 2, 0, 0})) << "the one element";
}

TEST_F(Elements, EveryHostAccessSharesTheBuffersMemory) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  auto const* const first = buffer.host().data();
  buffer.sync_to_device();
  EXPECT_EQ(buffer.host_view().data(), first);
  EXPECT_EQ(buffer.host_overwrite().data(), first);
  EXPECT_EQ(buffer.host(10, 5).data(), first + 10);
  EXPECT_EQ(&buffer.at(99), first + 99);
  EXPECT_EQ(buffer.map(MapMode::read).data(), first);
}

TEST_F(Elements, PrefetchingChangesNothingThatCanBeSeen) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  auto const* const address = buffer.host_view().data();
  buffer.prefetch().wait();
  buffer.prefetch(other).wait();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(buffer.host_view().data(), address);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  auto const counts = buffer.statistics();
  EXPECT_EQ(counts.host_to_device_bytes + counts.device_to_device_bytes, 800U);
  EXPECT_EQ(device_bytes(buffer, sim), counting(100));
  EXPECT_EQ(device_bytes(buffer, other), counting(100));
  EXPECT_EQ(buffer.statistics().host_to_device_copies + buffer.statistics().device_to_device_copies, 2U)
      << "who looks pays nothing any more";
}

TEST_F(Elements, ManyCopiesAreQueuedAndWaitedForOnce) {
  std::vector<UnifiedBuffer<std::uint32_t>> buffers;
  std::optional<Gate> gate{sim.default_queue()};
  std::vector<Event> events;
  for (std::uint32_t i = 0; i < 20; ++i) {
    buffers.emplace_back(1000, on_sim());
    buffers.back().copy_from(counting(1000, i));
    events.push_back(buffers.back().sync_to_device_async());
  }
  for (auto const event : events) EXPECT_FALSE(event.ready());
  gate.reset();
  sim.default_queue().synchronize();
  for (auto const event : events) EXPECT_TRUE(event.ready());
  EXPECT_EQ(moved(sim.transfers()), (Moved{20 * 4000, 20, 0, 0}));
  for (std::uint32_t i = 0; i < 20; ++i) EXPECT_EQ(device_bytes(buffers[i], sim), counting(1000, i));
}

TEST_F(Elements, UnifiedMemoryServesBothSidesWithoutTransfers) {
  auto options = on_sim();
  options.location = Location::unified;
  options.device = &device("cpu");
  UnifiedBuffer<std::uint32_t> buffer(100, options);
  buffer.copy_from(counting(100));
  {
    auto const lease = buffer.device();
    EXPECT_EQ(lease.data()[99], 99U);
    lease.data()[0] = 5;
  }
  EXPECT_EQ(buffer.at(0), 5U);
  EXPECT_EQ(moved(buffer.statistics()), Moved{});

  options.device = &sim;
  try {
    UnifiedBuffer<std::uint32_t> const refused(100, options);
    FAIL() << "the device has memory of its own alone";
  } catch (UnsupportedOperation const& error) {
    EXPECT_THAT(error.operation, HasSubstr("unified"));
    EXPECT_EQ(error.where, sim.id());
  }
}

}  // namespace
}  // namespace unimem::testing
