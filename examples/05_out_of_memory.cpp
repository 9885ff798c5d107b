// Running out of memory is the last thing that happens. A working set of twice the device runs: what can be had again
// goes first, and comes back when it is used. What cannot be made to fit is refused at once, with what was asked, what
// there is, and who holds it.
//
// The device is a simulated one of 64 MiB.

#include <unimem/unimem.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

unimem::Kernel add_one() {
  return unimem::Kernel("add_one")
      .source(R"(
        UNIMEM_KERNEL add_one(UNIMEM_BUFFER(int, x)) {
          UNIMEM_DATA(int, x)[UNIMEM_ITEM_X] += 1;
        })")
      .host([](unimem::WorkItem i, std::span<std::int32_t> x) { ++x[i.x]; });
}

}  // namespace

int main() {
  auto& device = unimem::make_sim({.memory_bytes = 64 * mib});
  auto const named = [&](std::string name) {
    return unimem::BufferOptions{.device = &device, .name = std::move(name)};
  };
  auto const kernel = add_one();

  // 128 MiB of tiles, each worked on three times: slower than if they fitted, and right.
  std::vector<unimem::UnifiedBuffer<std::int32_t>> tiles;
  for (int i = 0; i < 8; ++i) tiles.emplace_back(4 * mib, named("tile")).fill(i);
  for (int round = 0; round < 3; ++round) {
    for (auto& tile : tiles) unimem::launch(kernel, unimem::Range{tile.size()}, unimem::readwrite(tile));
  }
  bool right = true;
  for (int i = 0; i < 8; ++i) right = right && tiles[static_cast<std::size_t>(i)].host_view()[4 * mib - 1] == i + 3;
  std::printf("128 MiB of tiles on 64 MiB: %s\n", right ? "right" : "wrong");

  // Memory that somebody has an address of stays where it is, so that it can leave no room.
  unimem::UnifiedBuffer<float> weights(10 * mib, named("weights"));
  unimem::UnifiedBuffer<float> cache(3 * mib, named("cache"));
  auto const weights_lease = weights.device_overwrite(device), cache_lease = cache.device_overwrite(device);
  unimem::UnifiedBuffer<float> batch(4 * mib, named("batch"));
  try {
    static_cast<void>(batch.device_overwrite(device));
    return 1;
  } catch (unimem::OutOfMemory const& error) {
    std::printf("%s\n", error.what());
    std::printf("requested %zu of %zu bytes, %zu of them held by %s\n", error.facts().requested, error.facts().limit,
                error.facts().holders.at(0).bytes, error.facts().holders.at(0).name.c_str());
  }
  return right ? 0 : 1;
}
