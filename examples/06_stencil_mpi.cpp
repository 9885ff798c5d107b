// Heat spreads along a rod that is cut into one block for each rank of an MPI program. A rank needs one element of each
// neighbour: it is read from the neighbour's memory after every step, and nothing else moves between ranks, or between
// a rank's host and its device.
//
//     mpirun -n 4 06_stencil_mpi [DEVICE]
//
// prints the same for any number of ranks. The device is a simulated one, with memory of its own, unless another id is
// given ("cpu", "opencl:0").

#include <unimem/mpi.hpp>
#include <unimem/unimem.hpp>

#include <array>
#include <cstdint>
#include <cstdio>

namespace {

constexpr std::size_t count = 1000;
constexpr std::uint64_t steps = 200;

// next[i] = the mean of now[i] and its neighbours. `now` begins `before` elements ahead of `next`: the halo. At the
// ends of the rod, where there is none, it stays as hot as it is.
unimem::Kernel spread() {
  return unimem::Kernel("spread")
      .source(R"(
        UNIMEM_KERNEL spread(UNIMEM_CONST_BUFFER(double, now), UNIMEM_BUFFER(double, next), unsigned before, unsigned count) {
          size_t const i = UNIMEM_ITEM_X + before;
          double const left = i == 0 ? UNIMEM_DATA(const double, now)[i] : UNIMEM_DATA(const double, now)[i - 1];
          double const right = i + 1 == count ? UNIMEM_DATA(const double, now)[i] : UNIMEM_DATA(const double, now)[i + 1];
          UNIMEM_DATA(double, next)[UNIMEM_ITEM_X] = (left + UNIMEM_DATA(const double, now)[i] + right) / 3;
        })")
      .host([](unimem::WorkItem item, std::span<const double> now, std::span<double> next, std::uint32_t before,
               std::uint32_t reach) {
        auto const i = item.x + before;
        double const left = i == 0 ? now[i] : now[i - 1];
        double const right = i + 1 == reach ? now[i] : now[i + 1];
        next[item.x] = (left + now[i] + right) / 3;
      });
}

void run(unimem::Device& device) {
  using Rod = unimem::mpi::DistributedArray<double>;
  std::array<Rod, 2> rods{Rod(count, MPI_COMM_WORLD, {.halo = 1, .device = &device}),
                          Rod(count, MPI_COMM_WORLD, {.halo = 1, .device = &device})};
  auto const own = rods[0].own();
  auto const reach = rods[0].reach();
  auto local = rods[0].local();
  for (std::size_t i = own.begin; auto& element : local.host_overwrite()) element = i++ < 10 ? 1000.0 : 0.0;
  rods[0].fence();

  auto const kernel = spread();
  auto const before = static_cast<std::uint32_t>(own.begin - reach.begin);
  for (std::uint64_t step = 0; step < steps; ++step) {
    auto& now = rods[step % 2];
    auto& next = rods[(step + 1) % 2];
    unimem::launch(kernel, unimem::Range{own.size()}, unimem::read(now.read(reach)), unimem::write(next.local()),
                   before, static_cast<std::uint32_t>(reach.size()));
    next.fence();
  }

  auto& last = rods[steps % 2];
  double const sum = last.sum();
  double const hottest = last.max();
  // What moved between ranks: at most one element from each neighbour before each step.
  auto const edges = (reach.size() - own.size()) * sizeof(double);
  auto const moved = rods[0].statistics().read_bytes + rods[1].statistics().read_bytes;
  bool const is_least = moved <= edges * steps;
  if (own.begin == 0) {
    std::printf("after %llu steps: the sum is %.6f, the hottest element %.6f\n", static_cast<unsigned long long>(steps),
                sum, hottest);
    std::printf("at most one element moved from each neighbour for each step: %s\n", is_least ? "yes" : "no");
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  run(unimem::device(argc > 1 ? argv[1] : "sim"));
  MPI_Finalize();
}
