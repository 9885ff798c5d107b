#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>

#include "buffer/buffer_fixture.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <tuple>
#include <typeinfo>
#include <vector>

// What is refused of operands before anything has moved.

namespace unimem::testing {
namespace {

class Operands : public BufferTest {};

TEST_F(Operands, ThatNoLongerFitAreRefused) {
  auto buffer = synchronized();
  UnifiedBuffer<std::uint32_t> second(Shape(100), buffer.shared_core());
  auto const back = buffer.slice(55, 10);
  buffer.resize(60);
  auto const before = moved(sim.transfers());
  // The elements that are asked for are there; what they are elements of is not.
  EXPECT_THROW(std::ignore = read(second, 0, 5), InvalidArgument);
  EXPECT_THROW(std::ignore = write(second, 0, 5), InvalidArgument);
  EXPECT_THROW(std::ignore = read(back, 0, 5), InvalidArgument);
  EXPECT_THROW(std::ignore = write(back, 0, 5), InvalidArgument);
  EXPECT_THROW(std::ignore = readwrite(back, 0, 5), InvalidArgument);
  try {
    std::ignore = readwrite(second, 0, 5);
    FAIL() << "a part of what is no longer there was taken";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.value, "bytes [0, 400)");
    EXPECT_THAT(error.requirement, ::testing::HasSubstr("240"));
  }
  EXPECT_EQ(moved(sim.transfers()), before);
  EXPECT_EQ(buffer.to_vector(), counting(60));
  buffer.resize(100);
  EXPECT_EQ(readwrite(second, 0, 5).operand.range, (ByteRange{0, 20})) << "and works once it has grown back";
  EXPECT_EQ(readwrite(back, 0, 5).operand.range, (ByteRange{220, 240}));
}

/// What another source's anonymous namespace would give: of one name, and another type. Compilers differ in what
/// `std::type_info` makes of that.
class OfAnotherSource final : public std::type_info {
 public:
  explicit OfAnotherSource(std::type_info const& type) : std::type_info(type.name()) {}
};

struct Item {
  std::uint32_t value;
};

TEST_F(Operands, OfAnotherSourcesAnonymousTypeAreRefused) {
  UnifiedBuffer<Item> items(10, on_sim());
  items.fill({1});
  auto const kernel =
      Kernel("doubles").host([](WorkItem i, std::span<Item> all, Item by) { all[i.x].value *= by.value; });
  OfAnotherSource const namesake(typeid(Item));
  auto const arguments = [&] {
    return std::vector{detail::launch_argument(readwrite(items)), detail::launch_argument(Item{2})};
  };
  auto& queue = sim.default_queue();
  auto buffer_of_another = arguments(), scalar_of_another = arguments();
  buffer_of_another[0].buffer.element = &namesake;
  scalar_of_another[1].scalar_type = &namesake;
  auto const before = moved(sim.transfers());
  EXPECT_THROW(launch_kernel(&queue, kernel, Range{10}, buffer_of_another), KernelError);
  EXPECT_THROW(launch_kernel(&queue, kernel, Range{10}, scalar_of_another), KernelError);
  EXPECT_EQ(moved(sim.transfers()), before);
  launch_kernel(&queue, kernel, Range{10}, arguments());
  for (auto const& item : items.to_vector()) EXPECT_EQ(item.value, 2U);
}

}  // namespace
}  // namespace unimem::testing
