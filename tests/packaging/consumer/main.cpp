// A user's program: every element tripled by a kernel, on a device with memory of its own.
#include <unimem/unimem.hpp>

#include <cstdio>
#include <numeric>

int main() {
  unimem::UnifiedBuffer<long> numbers(1000, {.device = &unimem::device("sim")});
  auto const host = numbers.host();
  std::iota(host.begin(), host.end(), 0L);
  auto const triple = unimem::Kernel("triple").host([](unimem::WorkItem i, std::span<long> x) { x[i.x] *= 3; });
  unimem::launch(triple, unimem::Range{numbers.size()}, unimem::readwrite(numbers));
  auto const result = numbers.host_view();
  std::printf("unimem %s: %zu elements, sum %ld\n", unimem::version().data(), result.size(),
              std::accumulate(result.begin(), result.end(), 0L));
}
