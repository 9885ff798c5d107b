#include <unimem/core/error.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "core/failing_allocations.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <new>
#include <utility>

namespace unimem::testing {
namespace {

// A deadlock, and so a time-out, if the last share in a buffer goes while the registry is locked.
TEST(RegistryOutOfMemory, AFailedPublishDestroysWithoutTheLock) {
  BufferRegistry shared;
  MemoryManager manager;
  detail::SharedElement const element{Name{"u32"}, 4, ElementTag::u32};
  SharedOptions const options{.name = "a name that is too long for a string to hold within itself"};
  bool published = false;
  for (std::size_t n = 1; !published; ++n) {
    SCOPED_TRACE(::testing::Message() << "allocation " << n << " fails");
    std::array<std::uint32_t, 4> memory{};
    int freed = 0;
    detail::SharedCore last_share;
    {
      auto const buffer = manager.wrap(memory.data(), memory.size(), Location::host, Ownership::take([&](void*) {
                                         ++freed;
                                         EXPECT_EQ(shared.size(), 0U) << "a destructor may ask the registry";
                                       }));
      last_share = {buffer.shared_core(), Shape(memory.size())};
    }
    fail_allocation(n);
    try {
      auto const id = shared.publish_core(std::move(last_share), element, options);
      fail_allocation(0);
      published = true;
      EXPECT_EQ(freed, 0);
      EXPECT_EQ(shared.find(options.name), id);
      shared.release(id);
      EXPECT_GT(n, 2U) << "some have failed";
    } catch (std::bad_alloc const&) {
      EXPECT_EQ(shared.statistics().published, 0U);
      EXPECT_THROW(static_cast<void>(shared.find(options.name)), NotFound) << "nor was the name taken";
    }
    EXPECT_EQ(freed, 1);
    shared.validate();
  }
}

}  // namespace
}  // namespace unimem::testing
