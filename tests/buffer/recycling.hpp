#pragma once

#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include "device/gate.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unimem::testing {

/// A pooled buffer's way from one owner to the next, in all ways in which something of the first could reach the
/// second: what the second sees that he should not, or nothing. For faults that are planted there;
/// buffer_pool_reuse_test.cpp says the same in detail.
inline std::optional<std::string> broken_by_recycling(bool goes_ahead = false) {
  using Numbers = UnifiedBuffer<std::uint32_t>;
  constexpr std::size_t count = 1000;
  static auto& on = make_sim({.memory_bytes = std::size_t{4} << 20});
  set_sim_faults(on, {});
  MemoryManager manager;
  BufferPoolOptions options;
  options.manager = &manager;
  options.device = &on;
  options.settings.pageable.max_buffers = 2;
  BufferPool pool(options);
  auto const lend = [&] { return pool.acquire<std::uint32_t>(count); };
  auto const holds_only = [](std::vector<std::uint32_t> const& values, std::uint32_t value) {
    return std::ranges::count(values, value) == static_cast<std::ptrdiff_t>(values.size());
  };
  auto const on_device = [&](Numbers& buffer) {
    std::vector<std::uint32_t> values(buffer.size());
    auto const lease = buffer.device_view();
    on.default_queue().download(values.data(), lease.native(), buffer.size_bytes()).wait();
    return values;
  };
  try {
    auto buffer = lend();
    buffer.fill(1);
    pool.release(buffer);
    buffer = lend();
    if (buffer.state() != BufferState::uninitialized) return "a buffer comes with the state of its earlier use";

    // Pending work of the first owner must not write over what the second has written.
    buffer.allocate(false, true);
    auto queue = on.create_queue();
    std::optional<Gate> gate{queue};
    {
      auto const lease = buffer.device(queue);
      queue.fill(lease.native(), std::vector<std::byte>(1, std::byte{7}));
    }
    pool.release(buffer);
    buffer = lend();
    buffer.fill(2);
    auto const there = buffer.prefetch();
    // With the fault it goes ahead of that work, which then writes over it.
    if (goes_ahead) there.wait();
    if (there.ready()) return "a buffer is in use while its first owner's work is pending";
    gate.reset();
    queue.synchronize();
    there.wait();
    if (!holds_only(on_device(buffer), 2)) return "the first owner has written over the second's data";

    // Nor may its failures be told to the second.
    set_sim_faults(on, {.fail_upload = 1});
    buffer.host()[0] = 3;
    static_cast<void>(buffer.prefetch().wait_for_error());
    pool.release(buffer);
    buffer = lend();
    set_sim_faults(on, {});
    buffer.fill(4);
    buffer.sync_to_device();
    if (!holds_only(buffer.to_vector(), 4)) return "the first owner's failure has undone what the second wrote";

    // What is in other hands stays there.
    {
      auto const lease = buffer.device_view();
      pool.release(buffer);
      buffer = lend();
      buffer.fill(5);
      buffer.sync_to_device();
      if (lease.data()[0] != 4) return "a lease shows another owner's data";
    }
    auto const slice = buffer.slice(0, 10);
    pool.release(buffer);
    buffer = lend();
    buffer.fill(6);
    if (!holds_only(slice.to_vector(), 5)) return "a slice shows another owner's data";

    auto settings = pool.settings();
    settings.zero_on_release = true;
    pool.configure(settings);
    buffer.sync_to_device();
    pool.release(buffer);
    buffer = lend();
    static_cast<void>(buffer.device_overwrite());
    if (!holds_only(on_device(buffer), 0)) return "data was left on the device";

    auto core = pool.acquire_core(detail::buffer_kind<std::uint32_t>(count, false)), twin = core;
    pool.release_core(core);
    try {
      pool.release_core(twin);
      return "a buffer was taken back twice";
    } catch (InvalidArgument const&) {  // NOLINT(bugprone-empty-catch): as it should be
    }
    // What was lent and is gone was the last to be where the next one is.
    static_cast<void>(lend());
    BufferOptions elsewhere;
    elsewhere.manager = &manager;
    elsewhere.device = &on;
    Numbers own(count, elsewhere);
    own.fill(8);
    try {
      pool.release(own);
      return "a buffer was taken for one that is gone";
    } catch (InvalidArgument const&) {
      if (!holds_only(own.to_vector(), 8)) return "a buffer that was refused has lost its data";
    }
    for (std::size_t size = 1; size <= 3; ++size) {
      auto one = pool.acquire<std::uint32_t>(size);
      pool.release(one);
    }
    if (pool.pool_size() > 2) return "more is kept than the limits allow";
    pool.validate();
  } catch (std::exception const& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace unimem::testing
