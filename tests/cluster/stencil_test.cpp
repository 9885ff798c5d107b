#include "cluster/counted_calls.hpp"
#include "cluster/ranks.hpp"

#include <array>

// A stencil with halos: however many ranks compute it, the field is the same to the last bit, and what moves is what is
// computed by hand.

namespace unimem::testing {
namespace {

class Stencils : public RanksTest {
 protected:
  /// Rows of a plane, each of `width` elements, so that a halo of one row is one of `width` elements.
  static constexpr std::size_t width = 50;
  static constexpr std::size_t height = 37;
  static constexpr std::size_t cells = width * height;

  static std::vector<double> start() {
    std::vector<double> field(cells);
    for (std::size_t i = 0; i < cells; ++i) field[i] = static_cast<double>((i * i * 31 + i * 17) % 1009);
    return field;
  }
  /// Of the element at `i` in a field that holds the rows around it.
  static double step_at(std::span<double const> field, std::size_t i, std::size_t column, bool has_above,
                        bool has_below) {
    double const middle = field[i];
    double const above = has_above ? field[i - width] : middle;
    double const below = has_below ? field[i + width] : middle;
    double const left = column > 0 ? field[i - 1] : middle;
    double const right = column + 1 < width ? field[i + 1] : middle;
    return middle + 0.1 * (above + below + left + right - 4 * middle);
  }
  static std::vector<double> stepped(std::vector<double> field, int steps) {
    for (int step = 0; step < steps; ++step) {
      auto next = field;
      for (std::size_t i = 0; i < cells; ++i) next[i] = step_at(field, i, i % width, i >= width, i + width < cells);
      field = std::move(next);
    }
    return field;
  }
  static Kernel kernel() {
    return Kernel("stencil").host([](WorkItem item, std::span<double const> now, std::span<double> next,
                                     std::uint64_t before, std::uint64_t first) {
      auto const index = first + item.x;  // in the plane
      next[item.x] = step_at(now, before + item.x, index % width, index >= width, index + width < cells);
    });
  }
};

TEST_F(Stencils, AnyNumberOfRanksComputesTheSameField) {
  constexpr int steps = 20;
  using Field = mpi::DistributedArray<double>;
  for (auto* const device_used : {&sim, &device("cpu")}) {
    mpi::DistributedArrayOptions const options{.halo = width, .manager = &manager, .device = device_used};
    std::array<Field, 2> fields{Field(cells, MPI_COMM_WORLD, options), Field(cells, MPI_COMM_WORLD, options)};
    auto const own = fields[0].own();
    auto const reach = fields[0].reach();
    auto local = fields[0].local();
    auto const whole = start();
    local.copy_from(std::span(whole).subspan(own.begin, own.size()));
    fields[0].fence();
    for (int step = 0; step < steps; ++step) {
      auto& now = fields[static_cast<std::size_t>(step % 2)];
      auto& next = fields[static_cast<std::size_t>((step + 1) % 2)];
      reset_counted_calls();
      launch(device_used->default_queue(), kernel(), Range{own.size()}, read(now.read(reach)), write(next.local()),
             std::uint64_t{own.begin - reach.begin}, std::uint64_t{own.begin});
      auto const sides =
          static_cast<std::size_t>(reach.begin < own.begin) + static_cast<std::size_t>(own.end < reach.end);
      auto const neighbours = static_cast<std::size_t>(rank() > 0) + static_cast<std::size_t>(rank() + 1 < ranks());
      EXPECT_EQ(counted_calls().gets, sides);
      EXPECT_EQ(counted_calls().got_bytes, sides * width * sizeof(double))
          << "a row from either side, all of which has changed";
      EXPECT_EQ(counted_calls().sends, 0U);
      next.fence();
      EXPECT_EQ(counted_calls().sends, 2 * neighbours) << "each is told twice";
      EXPECT_LE(counted_calls().sent_bytes, 3 * neighbours) << "one range of changes";
    }
    auto& last = fields[steps % 2];
    auto const expected = stepped(start(), steps);
    auto const mine = std::span(expected).subspan(own.begin, own.size());
    EXPECT_EQ(last.local().to_vector(), std::vector<double>(mine.begin(), mine.end()));
  }
}

}  // namespace
}  // namespace unimem::testing
