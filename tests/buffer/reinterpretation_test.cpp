#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <array>
#include <bit>

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;

class Reinterpretation : public BufferTest {};

TEST_F(Reinterpretation, BothSidesSeeTheBytesAsAnotherType) {
  UnifiedBuffer<float> buffer(8, on_sim());
  buffer.fill(1.0F);
  auto bits = buffer.as<std::uint32_t>();
  EXPECT_EQ(bits.size(), 8U);
  EXPECT_EQ(static_cast<void const*>(bits.host_view().data()), static_cast<void const*>(buffer.host_view().data()));
  EXPECT_EQ(bits.at(3), std::bit_cast<std::uint32_t>(1.0F));
  bits.sync_to_device();
  set(sim.default_queue(), bits.slice(2, 2), std::bit_cast<std::uint32_t>(2.5F));
  EXPECT_EQ(buffer.state(), BufferState::device_dirty);
  EXPECT_EQ(buffer.to_vector(), (std::vector<float>{1, 1, 2.5F, 2.5F, 1, 1, 1, 1}));
  EXPECT_EQ(device_bytes(buffer, sim), buffer.to_vector());
  EXPECT_EQ(moved(buffer.statistics()), (Moved{32, 1, 8, 1}));
}

TEST_F(Reinterpretation, SizesCountInTheNewElementType) {
  UnifiedBuffer<std::uint32_t> buffer(6, on_sim());
  buffer.copy_from(counting(6));
  EXPECT_EQ(buffer.as<std::byte>().size(), 24U);
  EXPECT_EQ(buffer.as<std::uint64_t>().size(), 3U);
  EXPECT_EQ(buffer.as<std::uint64_t>().at(1), 2 + (std::uint64_t{3} << 32));
  auto pairs = buffer.as<std::array<std::uint32_t, 2>>().slice(2);
  pairs.fill({70, 80});
  EXPECT_EQ(buffer.to_vector(), (std::vector<std::uint32_t>{0, 1, 2, 3, 70, 80}));
  EXPECT_EQ(buffer.slice(4).as<std::uint64_t>().as<std::uint32_t>().to_vector(), (std::vector<std::uint32_t>{70, 80}));
}

TEST_F(Reinterpretation, APartialElementIsRefused) {
  UnifiedBuffer<std::uint32_t> buffer(5, on_sim());
  try {
    std::ignore = buffer.as<double>();
    FAIL() << "20 bytes were taken for doubles";
  } catch (SizeMismatch const& error) {
    EXPECT_EQ(error.actual, 20U);
    EXPECT_EQ(error.expected, 24U) << "the next whole number of them";
    EXPECT_STREQ(error.what(), "20 bytes as elements of 8 bytes: expected 24 bytes, got 20");
  }
  EXPECT_EQ(buffer.slice(0, 4).as<double>().size(), 2U);
}

TEST_F(Reinterpretation, AMisalignedOffsetIsRefused) {
  UnifiedBuffer<std::uint32_t> buffer(6, on_sim());
  buffer.copy_from(counting(6));
  try {
    std::ignore = buffer.slice(1, 4).as<std::uint64_t>();
    FAIL() << "an odd address would have come of it";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "offset");
    EXPECT_EQ(error.value, "4 bytes");
    EXPECT_THAT(error.requirement, HasSubstr("alignment, 8"));
  }
  using Packed = std::array<std::uint32_t, 2>;
  EXPECT_EQ(buffer.slice(1, 4).as<Packed>().at(1), (Packed{3, 4})) << "as large, and content with any fourth byte";
  EXPECT_EQ(buffer.to_vector(), counting(6));
}

TEST_F(Reinterpretation, AnEmptySliceIsEmptyInAnyType) {
  UnifiedBuffer<std::uint32_t> buffer(5, on_sim());
  EXPECT_TRUE(buffer.slice(2, 0).as<double>().empty());
  UnifiedBuffer<std::uint32_t> none(0, on_sim());
  EXPECT_TRUE(none.as<double>().to_vector().empty());
}

}  // namespace
}  // namespace unimem::testing
