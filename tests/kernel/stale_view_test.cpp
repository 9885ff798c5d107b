#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/kernel/launch.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sanitizers.hpp"
#include "device/page_watch.hpp"

#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace unimem::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Read once, at the first buffer.
[[maybe_unused]] bool const checking = setenv("UNIMEM_CHECK", "2", 1) == 0;

/// UNIMEM_CHECK=2 reports accesses to stale host bytes by kept addresses, and lets them go on.
class StaleView : public BufferTest {
 protected:
  using Span = std::span<std::uint32_t>;

  template <class Work>
  static std::string said(Work const& work) {
    ::testing::internal::CaptureStderr();
    work();
    return ::testing::internal::GetCapturedStderr();
  }
  static std::uint32_t look(std::span<const std::uint32_t> at, std::size_t index) {
    return *const_cast<std::uint32_t const volatile*>(&at[index]);
  }
  Event add_on_sim(std::size_t from, std::size_t count) {
    return launch(sim.default_queue(), adding, Range{count}, readwrite(samples, from, count));
  }

  inline static Kernel const adding = Kernel("adding").host([](WorkItem i, Span x) { x[i.x] += 1; });
  std::size_t const page = detail::PageWatch::page_bytes() / 4;
  UnifiedBuffer<std::uint32_t> samples{100, on_sim("samples")};
};

TEST_F(StaleView, ReportsAReadAfterALaunch) {
  samples.fill(5);
  auto const view = samples.host_view();
  std::uint32_t seen = 0;
  auto const text = said([&] {
    add_on_sim(0, 100).wait();
    seen = look(view, 3);
  });
  EXPECT_THAT(text, AllOf(HasSubstr("buffer 'samples'"), HasSubstr("byte 12, of bytes [0, 400)"), HasSubstr("read"),
                          HasSubstr("accessed from"), HasSubstr("StaleView")));
  EXPECT_EQ(seen, 5U) << "what it finds without the check";
  EXPECT_EQ(said([&] { static_cast<void>(look(view, 4)); }), "") << "once for each launch";
  EXPECT_THAT(said([&] { EXPECT_THAT(samples.to_vector(), Each(6U)); }), "");
  EXPECT_EQ(said([&] { EXPECT_EQ(look(view, 3), 6U); }), "") << "current again";
  EXPECT_THAT(said([&] {
                add_on_sim(0, 100).wait();
                static_cast<void>(look(view, 99));
              }),
              HasSubstr("byte 396, of bytes [0, 400)"));
}

TEST_F(StaleView, ReportsAWriteAndLetsItHappen) {
  samples.fill(5);
  auto const view = samples.host();
  auto const text = said([&] {
    add_on_sim(0, 100).wait();
    view[1] = 77;
  });
  EXPECT_THAT(text, AllOf(HasSubstr("buffer 'samples'"), HasSubstr("byte 4"), HasSubstr("through an address kept")));
#if defined(__x86_64__)
  EXPECT_THAT(text, HasSubstr("was written"));
#endif
  EXPECT_EQ(view[1], 77U);
  static_cast<void>(said([&] { EXPECT_THAT(samples.to_vector(), Each(6U)); }));
}

TEST_F(StaleView, ReportsOnlyThePagesThatAreStale) {
  samples.resize(3 * page);
  samples.fill(5);
  auto const view = samples.host_view();
  EXPECT_EQ(said([&] {
              add_on_sim(page, page).wait();
              EXPECT_EQ(look(view, 0), 5U);
              EXPECT_EQ(look(view, 3 * page - 1), 5U);
            }),
            "");
  EXPECT_THAT(said([&] { static_cast<void>(look(view, page)); }),
              HasSubstr("byte " + std::to_string(4 * page) + ", of bytes [" + std::to_string(4 * page) + ", " +
                        std::to_string(8 * page) + ")"));
}

TEST_F(StaleView, IsSilentForAccessesThatAreDeclared) {
  samples.resize(2 * page);
  EXPECT_EQ(said([&] {
              samples.fill(5);
              auto const view = samples.host_view();
              for (std::uint32_t round = 1; round < 4; ++round) {
                add_on_sim(0, 2 * page).wait();
                samples.sync_to_host();
                EXPECT_EQ(look(view, page), 5U + round);
              }
              auto const mapping = samples.map(MapMode::write);
              add_on_sim(0, 1).wait();
              mapping[page] = 1;  // mapped to be written: what counts is said at its end
            }),
            "");
}

TEST_F(StaleView, IsNotInTheWayOfTheLibrary) {
  samples.resize(2 * page);
  UnifiedBuffer<std::uint32_t> copied(2 * page, on_sim("copied"));
  auto const stale = [&] {
    samples.fill(5);
    static_cast<void>(samples.host_view());
    add_on_sim(0, 2 * page).wait();
  };
  EXPECT_EQ(said([&] {
              stale();
              copy(samples, copied);
              EXPECT_THAT(copied.to_vector(), Each(6U));
              stale();
              samples.fill(7, 0, page);
              EXPECT_EQ(samples.host_view()[2 * page - 1], 6U);
              stale();
              launch(device("cpu").default_queue(), adding, Range{2 * page}, readwrite(samples)).wait();
              EXPECT_THAT(samples.to_vector(), Each(7U));
              stale();
              samples.release_device();
              EXPECT_THAT(samples.to_vector(), Each(6U));
              stale();
              samples.resize(3 * page);
              EXPECT_EQ(samples.host_view(0, page)[0], 6U);
              stale();
              samples.release_host();
              EXPECT_EQ(samples.host_view(0, page)[0], 6U);
              stale();
              samples.free();
              samples.fill(1);
              EXPECT_THAT(samples.to_vector(), Each(1U));
            }),
            "");
}

TEST_F(StaleView, IsOpenForTheNextOwner) {
  BufferPool pool({.settings = {.zero_on_release = true}, .manager = &manager, .device = &sim, .name = "pooled"});
  EXPECT_EQ(said([&] {
              for (int round = 0; round < 3; ++round) {
                PooledBuffer<std::uint32_t> buffer(pool, {2 * page});
                buffer->fill(5);
                static_cast<void>(buffer->host_view());
                launch(sim.default_queue(), adding, Range{2 * page}, readwrite(*buffer)).wait();
              }
              std::vector<UnifiedBuffer<std::uint32_t>> others;
              for (int i = 0; i < 8; ++i) {
                others.emplace_back(2 * page, on_sim("other"));
                others.back().fill(1);
                EXPECT_THAT(others.back().to_vector(), Each(1U));
              }
            }),
            "");
}

/// Whether the handler that was there before got the fault: the system's, or a sanitizer's, which exits.
bool ended_by_earlier_handler(int status) {
  return detail::is_sanitized ? WIFEXITED(status) && WEXITSTATUS(status) != 0
                              : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

TEST_F(StaleView, PassesOtherFaultsOn) {
  samples.fill(5);
  static_cast<void>(samples.host_view());
  add_on_sim(0, 100).wait();
  auto* const elsewhere = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(elsewhere, MAP_FAILED);
  EXPECT_EXIT(*static_cast<int volatile*>(elsewhere) = 1, ended_by_earlier_handler, "");
  munmap(elsewhere, 4096);
}

}  // namespace
}  // namespace unimem::testing
