#include <unimem/core/environment.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <string>

namespace unimem::testing {
namespace {

/// Random use of the public face, on the host, two simulated devices and the cpu device, against an array that simply
/// holds what was written. The pure rules have a shadow model of their own (tests/coherence); this one is about the
/// memory and the copies.
class BufferModel : public BufferTest, public ::testing::WithParamInterface<unsigned> {
 protected:
  static constexpr std::size_t count = 64;

  static std::size_t operations() {
    auto const wanted = environment("UNIMEM_TEST_OPERATIONS");
    return wanted ? std::stoul(*wanted) / 20 : 3000;
  }
};

TEST_P(BufferModel, EverySideReadsWhatWasLastWritten) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  std::array<Device*, 3> const on{&sim, &other, &device("cpu")};
  UnifiedBuffer<std::uint32_t> buffer(count, on_sim());
  std::vector<std::uint32_t> model(count, 0);
  buffer.fill(0);

  std::uint32_t next = 1;
  for (std::size_t step = 0; step < operations(); ++step) {
    auto const offset = random() % (count + 1);
    auto const length = random() % (count - offset + 1);
    auto& where = *on[random() % on.size()];
    switch (random() % 11) {
      case 0: {
        auto const view = buffer.host(offset, length);
        ASSERT_TRUE(std::ranges::equal(view, std::span(model).subspan(offset, length)));
        std::ranges::fill(view, next);
        std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(offset), length, next++);
        break;
      }
      case 1: {
        std::ranges::fill(buffer.host_overwrite(offset, length), next);
        std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(offset), length, next++);
        break;
      }
      case 2:
        ASSERT_TRUE(std::ranges::equal(buffer.host_view(offset, length), std::span(model).subspan(offset, length)));
        break;
      case 3: {
        auto const lease = buffer.device(where);
        ASSERT_TRUE(std::equal(model.begin(), model.end(), lease.data()));
        std::fill_n(lease.data() + offset, length, next);
        std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(offset), length, next++);
        break;
      }
      case 4: {
        auto const lease = buffer.device_view(where);
        ASSERT_TRUE(std::equal(model.begin(), model.end(), lease.data()));
        break;
      }
      case 5:
        buffer.fill(next, offset, length);
        std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(offset), length, next++);
        break;
      case 6:
        buffer.synchronize();
        break;
      case 7:
        buffer.prefetch(where);
        break;
      case 8:
        buffer.release_device(where);
        break;
      case 9: {
        auto const data = counting(length, next);
        buffer.copy_from(data, offset);
        std::ranges::copy(data, model.begin() + static_cast<std::ptrdiff_t>(offset));
        next += static_cast<std::uint32_t>(length);
        break;
      }
      case 10:
        if (random() % 4 == 0) buffer.release_host();
        break;
    }
    ASSERT_NO_FATAL_FAILURE(buffer.core().validate());
  }
  EXPECT_EQ(buffer.to_vector(), model);
  auto const counts = buffer.statistics();
  EXPECT_EQ(counts.host_to_device_bytes, sim.transfers().host_to_device_bytes + other.transfers().host_to_device_bytes);
  EXPECT_EQ(counts.device_to_host_bytes, sim.transfers().device_to_host_bytes + other.transfers().device_to_host_bytes);
  EXPECT_EQ(counts.device_to_device_bytes,
            sim.transfers().device_to_device_bytes + other.transfers().device_to_device_bytes);
}

INSTANTIATE_TEST_SUITE_P(Seeds, BufferModel, ::testing::Values(1U, 2U, 3U, 2026U));

}  // namespace
}  // namespace unimem::testing
