#pragma once

#include <unimem/buffer/buffer_pool.hpp>

#include "buffer/buffer_fixture.hpp"

#include <chrono>
#include <cstdint>

namespace unimem::testing {

using Numbers = UnifiedBuffer<std::uint32_t>;

/// A pool of buffers whose time is set by hand, on a simulated device, with every invariant checked at the end.
class BufferPoolTest : public BufferTest {
 protected:
  void TearDown() override { pool.validate(); }

  [[nodiscard]] BufferPoolOptions options(BufferPoolSettings settings = {}) {
    BufferPoolOptions result;
    result.settings = settings;
    result.manager = &manager;
    result.device = &sim;
    result.clock = [this] { return now; };
    return result;
  }

  std::chrono::steady_clock::time_point now{std::chrono::hours{1}};
  BufferPool pool{options()};
};

}  // namespace unimem::testing
