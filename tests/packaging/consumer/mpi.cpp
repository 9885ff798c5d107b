// A user's MPI program: a rank sends itself what a kernel has made.
#include <unimem/mpi.hpp>
#include <unimem/unimem.hpp>

#include <cstdio>
#include <numeric>

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  {
    unimem::UnifiedBuffer<long> sent(1000, {.device = &unimem::device("sim")});
    unimem::UnifiedBuffer<long> received(1000);
    auto const count = unimem::Kernel("count").host(
        [](unimem::WorkItem i, std::span<long> x) { x[i.x] = 3 * static_cast<long>(i.x); });
    unimem::launch(count, unimem::Range{sent.size()}, unimem::write(sent));
    unimem::mpi::isend(unimem::read(sent), 0, 1);
    unimem::mpi::receive(unimem::write(received), 0, 1);
    auto const result = received.host_view();
    std::printf("unimem %s: %zu elements, sum %ld\n", unimem::version().data(), result.size(),
                std::accumulate(result.begin(), result.end(), 0L));
  }
  MPI_Finalize();
}
