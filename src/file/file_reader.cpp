#include "file/file_reader.hpp"

#include <unimem/core/error.hpp>

#include "file/residency.hpp"

#include <algorithm>
#include <cerrno>

namespace unimem::detail {
namespace {

/// Between two looks at whether to stop: some milliseconds, even of a slow disk.
constexpr std::size_t cached_step = std::size_t{8} << 20;
/// Bytes that are still in the processor's cache when `arrived` is told of them.
constexpr std::size_t told_step = std::size_t{1} << 20;

std::size_t read_cached(File const& file, std::uint64_t offset, std::span<std::byte> to, ReadTerms const& terms) {
  auto const step = terms.arrived ? told_step : terms.stop ? cached_step : to.size();
  std::size_t done = 0;
  while (done < to.size() && !(terms.stop && terms.stop())) {
    auto const part = to.subspan(done, std::min(step, to.size() - done));
    auto const count = file.read(offset + done, part, terms.doing, terms.retries);
    if (terms.arrived) terms.arrived(part.first(count));
    done += count;
    if (count < part.size()) break;
  }
  return done;
}

}  // namespace

FileReader::FileReader(File const& file, ReadWay way) : way_(way) {
  if (way_ == ReadWay::direct) direct_.emplace(DirectReader::open(file));
}

DirectReader const* FileReader::direct(File const& file) const {
  if (way_ == ReadWay::by_residency) {
    std::call_once(once_, [&] {
      if (auto made = DirectReader::where_possible(file)) direct_.emplace(*std::move(made));
    });
  }
  return direct_ ? &*direct_ : nullptr;
}

bool FileReader::goes_direct(File const& file, std::uint64_t offset, std::uint64_t bytes) const {
  if (way_ != ReadWay::by_residency) return way_ == ReadWay::direct;
  if (bytes < least_direct || refused_.load(std::memory_order_relaxed) || direct(file) == nullptr) return false;
  return resident_share(file, offset, bytes).value_or(1) < 0.5;
}

ReadCount FileReader::read(File const& file, std::uint64_t offset, std::span<std::byte> to,
                           ReadTerms const& terms) const {
  if ((way_ == ReadWay::direct || !terms.comes_again) && goes_direct(file, offset, to.size())) {
    try {
      auto const count = direct(file)->read(offset, to, terms);
      return {count.bytes, count.bytes, count.by_ring ? count.bytes : 0};
    } catch (IoError const& error) {
      // Some file systems say so only now, at the first request. A caller that asked for this way
      // is told; for others the page cache is as good.
      if (way_ == ReadWay::direct || error.code != EINVAL) throw;
      refused_.store(true, std::memory_order_relaxed);  // who has missed it is refused itself
    }
  }
  return {read_cached(file, offset, to, terms), 0, 0};
}

}  // namespace unimem::detail
