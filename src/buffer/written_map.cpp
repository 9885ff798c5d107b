#include "buffer/written_map.hpp"

#include <unimem/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace unimem::detail {
namespace {

/// "[0, 4), [8, 12) and 3 more ranges".
std::string in_words(ByteRanges const& bytes) {
  constexpr std::size_t most = 4;
  std::string text;
  auto const ranges = bytes.ranges();
  for (auto const range : ranges.first(std::min(most, ranges.size()))) {
    text += fmt::format("{}[{}, {})", text.empty() ? "" : ", ", range.begin, range.end);
  }
  if (ranges.size() > most) text += fmt::format(" and {} more ranges", ranges.size() - most);
  return text;
}

}  // namespace

WrittenMap::WrittenMap(std::size_t bytes, std::string name) : name_(std::move(name)), unwritten_(ByteRange{0, bytes}) {
  publish();
}

void WrittenMap::forget(std::size_t bytes) {
  std::lock_guard const lock{mutex_};
  fills_.clear();
  unwritten_ = ByteRanges{{0, bytes}};
  publish();
}

void WrittenMap::wrote(ByteRange range) {
  std::lock_guard const lock{mutex_};
  unwritten_.remove(range);
  for (auto const& known : fills_) {
    if (auto const fill = known.lock()) fill->open_.remove(range);
  }
  publish();
}

void WrittenMap::resize(std::size_t before, std::size_t bytes) {
  std::lock_guard const lock{mutex_};
  fills_.clear();  // a buffer is resized when all work on it has ended
  if (bytes < before) unwritten_.remove({bytes, before});
  if (bytes > before) unwritten_.add({before, bytes});
  publish();
}

void WrittenMap::copied(ByteRange range, WrittenMap const& from, std::size_t begin) {
  ByteRanges left;
  {
    std::lock_guard const lock{from.mutex_};
    auto const there = from.unwritten_.intersection(ByteRanges{{begin, begin + range.size()}});
    for (auto const part : there.ranges()) left.add({part.begin - begin + range.begin, part.end - begin + range.begin});
  }
  std::lock_guard const lock{mutex_};
  unwritten_.remove(range);
  unwritten_.add(left);
  publish();
}

auto WrittenMap::begin_fill(ByteRange range) -> std::shared_ptr<Fill> {
  auto fill = std::make_shared<Fill>(range);
  std::lock_guard const lock{mutex_};
  std::erase_if(fills_, [](auto const& known) { return known.expired(); });
  fills_.push_back(fill);
  publish();
  return fill;
}

void WrittenMap::end_fill(Fill& fill, ByteRanges left) {
  std::vector<std::pair<Fill::Reader, ByteRanges>> reports;
  {
    std::lock_guard const lock{mutex_};
    std::erase_if(fills_, [&](auto const& known) {
      auto const other = known.lock();
      return other == nullptr || other.get() == &fill;
    });
    left = left.intersection(fill.open_);
    for (auto& reader : fill.readers_) {
      auto const bytes = left.intersection(reader.bytes);
      if (bytes.empty()) continue;
      left.remove(bytes);
      reports.emplace_back(std::move(reader), bytes);
    }
    unwritten_.add(left);
    publish();
  }
  for (auto const& [reader, bytes] : reports) report(bytes, reader.how, reader.place);
}

void WrittenMap::read(ByteRange range, std::string_view how) {
  if (complete()) return;
  ByteRanges const wanted{range};
  ByteRanges found;
  std::optional<ProgramPlace> place;
  {
    std::lock_guard const lock{mutex_};
    found = unwritten_.intersection(wanted);
    unwritten_.remove(range);
    for (auto const& known : fills_) {
      auto const fill = known.lock();
      if (fill == nullptr || !fill->open_.intersects(range)) continue;
      if (!place) place = ProgramPlace::here();
      fill->readers_.push_back({fill->open_.intersection(wanted), std::string(how), *place});
    }
    publish();
  }
  if (found.empty()) return;
  report(found, how, place ? *place : ProgramPlace::here());
}

void WrittenMap::publish() {
  // Release: with the reports that are due no more.
  complete_.store(unwritten_.empty() && fills_.empty(), std::memory_order_release);
}

void WrittenMap::report(ByteRanges const& bytes, std::string_view how, ProgramPlace const& place) const {
  log(LogLevel::error, fmt::format("{}: bytes {} are read {}, and nothing has written them{}", name_, in_words(bytes),
                                   how, describe_place("read from", place)));
}

}  // namespace unimem::detail
