#include <unimem/manager/memory_manager.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/failing_allocations.hpp"

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace unimem::testing {
namespace {

class WrappingOutOfMemory : public BufferTest {};

TEST_F(WrappingOutOfMemory, LeavesWhatIsRefusedToItsOwner) {
  MemoryManager manager;
  bool done = false;
  for (std::size_t n = 1; !done; ++n) {
    ASSERT_LT(n, 200U) << "it never passes";
    SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails");
    auto words = counting(100);
    std::size_t deleted = 0;
    auto ownership = Ownership::take([&](void*) { ++deleted; });
    fail_allocation(n);
    try {
      auto const buffer = manager.wrap(words.data(), words.size(), Location::host, std::move(ownership));
      done = true;
      fail_allocation(0);
      EXPECT_EQ(buffer.to_vector(), words);
      EXPECT_EQ(deleted, 0U);
    } catch (std::bad_alloc const&) {
    }
    fail_allocation(0);
    EXPECT_EQ(deleted, done ? 1U : 0U);
  }
}

}  // namespace
}  // namespace unimem::testing
