#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/failing_allocations.hpp"

#include <cstddef>
#include <new>
#include <tuple>

namespace unimem::testing {
namespace {

class ResizeOutOfMemory : public BufferTest {
 protected:
  /// Resizes with every allocation failing in its turn, until it needs no more than were granted.
  void sweep(Tracking tracking, bool advised, std::size_t count, std::size_t target) {
    bool done = false;
    for (std::size_t n = 1; !done; ++n) {
      ASSERT_LT(n, 200U) << "it never passes";
      SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails, " << count << " to " << target);
      auto options = on_sim("a name that is too long to be kept in place");
      options.tracking = tracking;
      UnifiedBuffer<std::uint32_t> buffer({count / 2, std::size_t{2}}, options);
      if (advised) buffer.advise(Advice::read_mostly);
      buffer.copy_from(counting(count));
      auto const* const address = buffer.host_view().data();
      auto const state = buffer.state();
      fail_allocation(n);
      try {
        buffer.resize(target);
        done = true;
      } catch (std::bad_alloc const&) {
      }
      fail_allocation(0);
      auto const size = done ? target : count;
      EXPECT_EQ(buffer.size(), size);
      EXPECT_EQ(buffer.rank(), done ? 1U : 2U);
      EXPECT_EQ(buffer.core().size_bytes(), size * 4) << "the shape and what it is the shape of";
      EXPECT_EQ(buffer.tracking(), tracking);
      EXPECT_EQ(buffer.advice().size(), advised && size != 0 ? 1U : 0U);
      if (advised && !buffer.advice().empty()) {
        EXPECT_EQ(buffer.advice().front().range, (ByteRange{0, size * 4}));
      }
      buffer.core().validate();
      if (!done) {
        EXPECT_EQ(buffer.state(), state);
        EXPECT_EQ(buffer.host_view().data(), address);
        EXPECT_EQ(buffer.to_vector(), counting(count));
      } else {
        EXPECT_GT(n, 1U) << "some have failed";
        EXPECT_EQ(buffer.slice(0, std::min(count, target)).to_vector(), counting(std::min(count, target)));
      }
      buffer.fill(3);
      EXPECT_EQ(device_bytes(buffer, sim), std::vector<std::uint32_t>(size, 3U));
      EXPECT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(size, 3U));
    }
  }
};

TEST_F(ResizeOutOfMemory, LeavesTheBufferAsItWas) {
  for (bool const advised : {false, true}) {
    sweep(Tracking::access, advised, 100, 300);
    sweep(Tracking::manual, advised, 100, 10);
    sweep(Tracking::access, advised, 100, 0);
  }
}

TEST_F(ResizeOutOfMemory, LeavesATrackedBufferAsItWasToo) {
  try {
    auto options = on_sim();
    options.tracking = Tracking::pages;
    std::ignore = UnifiedBuffer<std::uint32_t>(1, options);
  } catch (UnsupportedOperation const& unsupported) {
    GTEST_SKIP() << unsupported.what();
  }
  sweep(Tracking::pages, true, std::size_t{1} << 16, std::size_t{1} << 17);
}

}  // namespace
}  // namespace unimem::testing
