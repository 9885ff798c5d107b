#include "process/peers.hpp"
#include "process/segment.hpp"

#include "core/sanitizers.hpp"
#include "forked_child.hpp"
#include "peer_processes.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

// Hundreds of processes that offer and fetch at the same time.

namespace unimem::testing {
namespace {

using detail::Peers;
using detail::Segment;

TEST(ManyProcesses, OfferAndFetchAtOnce) {
  constexpr std::uint64_t count = detail::is_sanitized ? 100 : 300;
  int ready[2], all_ready[2], all_done[2];
  for (auto* const ends : {ready, all_ready, all_done}) ASSERT_EQ(::pipe(ends), 0);
  // What closes when its last holder does: waits for that.
  auto const wait_for = [](int(&ends)[2]) {
    ::close(ends[1]);
    char none = 0;
    static_cast<void>(::read(ends[0], &none, 1));
  };
  std::vector<::pid_t> children;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto const child = fork_while_others_sleep();
    ASSERT_GE(child, 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int code = 1;
    try {
      auto const segment = Segment::make("test", 4'096);
      segment.data()[0] = static_cast<std::byte>(i);
      Peers::of_this_process().offer({9, i}, one_of(segment), std::to_string(i));
      static_cast<void>(::write(ready[1], "x", 1));
      wait_for(all_ready);
      code = 0;
      for (auto const other : {(i + 7) % count, (i + 150) % count}) {
        auto found = Peers::fetch({9, other});
        if (!found || found->bytes != std::to_string(other) || found->descriptors.size() != 1) {
          code = 2;
          break;
        }
        auto const its = Segment::adopt(std::move(found->descriptors[0]), 4'096, "another");
        if (its.data()[0] != static_cast<std::byte>(other)) code = 3;
      }
      static_cast<void>(::write(ready[1], "x", 1));
      wait_for(all_done);
    } catch (std::exception const& error) {
      std::fprintf(stderr, "child %d: %s\n", static_cast<int>(i), error.what());
      static_cast<void>(::write(ready[1], "x", 1));
    }
    std::_Exit(code);
  }
  auto const all_have_written = [&] {
    for (std::uint64_t i = 0; i < count; ++i) {
      char one = 0;
      EXPECT_EQ(::read(ready[0], &one, 1), 1);
    }
  };
  all_have_written();
  ::close(all_ready[1]);
  all_have_written();
  EXPECT_EQ(Peers::list().size(), count);
  ::close(all_done[1]);
  for (auto const child : children) EXPECT_EQ(ending_of(child), 0);
  for (int const end : {ready[0], ready[1], all_ready[0], all_done[0]}) ::close(end);
}

}  // namespace
}  // namespace unimem::testing
