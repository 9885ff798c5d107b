#include "file/residency.hpp"

#include "core/system_page.hpp"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace unimem::detail {
namespace {

#ifdef SYS_cachestat
constexpr long cachestat_number = SYS_cachestat;
#else
constexpr long cachestat_number = 451;  // on every architecture
#endif

/// The kernel's structures of these names.
struct CachestatRange {
  std::uint64_t offset, bytes;
};
struct Cachestat {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;  // pages
};

/// The bytes of a sample, and how many samples there are of a range of any size: 2 microseconds of work.
constexpr std::uint64_t sample_bytes = std::uint64_t{64} << 10, samples = 16;

std::optional<std::uint64_t> pages_resident(int descriptor, CachestatRange range) {
  Cachestat found{};
  if (::syscall(cachestat_number, descriptor, &range, &found, 0U) != 0) return std::nullopt;
  return found.cached;
}

}  // namespace

std::optional<double> counted_share(File const& file, std::uint64_t offset, std::uint64_t bytes) {
  auto const page = std::uint64_t{system_page_bytes()};
  auto const first = offset / page, end = (offset + bytes + page - 1) / page;
  auto const pages = end - first, each = std::max<std::uint64_t>(1, sample_bytes / page);
  if (pages == 0) return std::nullopt;
  bool const whole = pages <= samples * each;
  std::uint64_t resident = 0, looked_at = 0;
  for (std::uint64_t i = 0; i < (whole ? 1 : samples); ++i) {
    // The first and the last of the range are among them.
    auto const at = whole ? first : first + (pages - each) * i / (samples - 1);
    auto const count = whole ? pages : each;
    auto const found = pages_resident(file.descriptor(), {at * page, count * page});
    if (!found) return std::nullopt;
    resident += *found;
    looked_at += count;
  }
  return static_cast<double>(resident) / static_cast<double>(looked_at);
}

std::optional<double> probed_share(File const& file, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return std::nullopt;
  auto const count = std::min(bytes, samples);
  // Elsewhere in each part every time: what has been tried is there the next time.
  static std::atomic<std::uint64_t> times{0};  // relaxed: a number alone
  auto const turn = times.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B97F4A7C15U;
  unsigned resident = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte byte{};
    ::iovec const to{&byte, 1};
    auto const at = offset + bytes / count * i + (turn >> 16U) % (bytes / count);
    auto const found = ::preadv2(file.descriptor(), &to, 1, static_cast<::off_t>(at), RWF_NOWAIT);
    if (found < 0 && errno != EAGAIN && errno != EINTR) return std::nullopt;
    if (found == 1) ++resident;
  }
  return static_cast<double>(resident) / static_cast<double>(count);
}

std::optional<double> resident_share(File const& file, std::uint64_t offset, std::uint64_t bytes) {
  auto const share = counted_share(file, offset, bytes);
  return share ? share : probed_share(file, offset, bytes);
}

}  // namespace unimem::detail
