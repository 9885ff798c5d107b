#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/host_writes.hpp"
#include "buffer/replica.hpp"
#include "device/page_watch.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

class TrackedPages final : public HostWrites {
 public:
  TrackedPages(std::shared_ptr<Replica> const& host, std::size_t bytes)
      : host_(host),
        memory_(static_cast<std::byte const*>(host->host_address())),
        bytes_(bytes),
        watch_(host->host_address(), host->memory().bytes) {}

  std::optional<HostWriteConflict> collect(Coherence const& coherence, Record const& record, bool wait) override {
    auto const busy = forget_expected(wait);
    // Once the failure has been dealt with, what it left here is valid no more.
    auto valid = valid_here(coherence);
    std::erase_if(failed_writes_, [&](ByteRange range) { return !valid.intersects(range); });
    auto const found = watch_.collect({0, bytes_});
    try {
      return record_all(coherence, record, found, busy, std::move(valid));
    } catch (...) {
      // What has not been recorded is found again; what has been is then found to be known.
      for (auto const pages : found.ranges()) watch_.mark_written(pages);
      throw;
    }
  }

  void reserve(std::size_t writes) override {
    auto const needed = expected_.size() + writes;
    if (needed > expected_.capacity()) expected_.reserve(std::max(needed, 2 * expected_.size()));
  }

  void expect_device(ByteRange range, Event end) override {
    if (!range.empty()) expected_.push_back({range, end, false});
  }

  void expect_copy(ByteRange range, Event end) override {
    if (!range.empty()) expected_.push_back({range, end, true});
  }

  void wrote(ByteRange range) override {
    if (range.empty()) return;
    static_cast<void>(watch_.collect(range));
    refresh_twins(range);
  }

  void overrule(ByteRange range) override {
    // What lies outside `range` on its pages may have been written, too.
    auto const page = PageWatch::page_bytes();
    auto const pages = watch_.collect(range);
    for (auto const found : pages.ranges()) {
      if (found.begin < range.begin) watch_.mark_written({range.begin / page * page, range.begin});
      if (found.end > range.end && range.end < bytes_) watch_.mark_written({range.end, range.end + 1});
    }
    refresh_twins(range);
  }

  void remember(Coherence const& coherence) override {
    // Twins of pages that are no longer shared are no use; pages that have become so get one while only the library
    // has had the buffer.
    std::map<std::size_t, std::vector<std::byte>> twins;
    if (coherence.has_data() && coherence.has_storage(host_place)) {
      auto const valid = valid_here(coherence);
      for (auto const range : valid.ranges()) {
        for (auto const edge : {range.begin, range.end}) {
          auto const page = page_of(edge == 0 ? 0 : edge == range.end ? edge - 1 : edge);
          if (valid.contains(page) || twins.contains(page.begin)) continue;
          if (auto kept = twins_.extract(page.begin)) {
            twins.insert(std::move(kept));
          } else {
            twins.emplace(page.begin, copy_of(page));
          }
        }
      }
    }
    twins_ = std::move(twins);
  }

 private:
  struct ExpectedWrite {
    ByteRange range;
    Event end;
    bool copied = false;  ///< by the library; else by a device that shares the memory
  };

  /// Of the pages `found` written, those that are not `busy`; what is there is then said to have been written.
  std::optional<HostWriteConflict> record_all(Coherence const& coherence, Record const& record, ByteRanges found,
                                              ByteRanges const& busy, ByteRanges valid) {
    for (auto const range : busy.ranges()) {
      auto const later = found.intersection(ByteRanges{range});
      for (auto const pages : later.ranges()) watch_.mark_written(pages);
      found.remove(range);
    }
    std::optional<HostWriteConflict> conflict;
    for (auto const range : found.ranges()) {
      for (auto page = range.begin; page < std::min(range.end, bytes_); page += PageWatch::page_bytes()) {
        ByteRange const there{page, std::min(page + PageWatch::page_bytes(), bytes_)};
        if (!coherence.has_data()) {
          record_unless_failed(coherence, record, there);  // what is there now is the data
          valid = valid_here(coherence);
          continue;
        }
        auto const clash = absorb_page(coherence, valid, record, there);
        if (!clash) continue;
        watch_.mark_written({page, page + 1});
        if (!conflict) conflict = clash;
      }
    }
    return conflict;
  }

  /// What devices that share the memory have written, and what was copied here, is no user's. Returns the pages that
  /// are still being written.
  ByteRanges forget_expected(bool wait) {
    if (wait) {
      // Where that may end with an error, before anything has changed.
      for (auto const& write : expected_) await_end(write.end);
    }
    ByteRanges busy;
    auto left = expected_.begin();
    for (auto const& write : expected_) {
      auto const [range, end, copied] = write;
      if (!wait && !end.ready()) {
        busy.add({page_of(range.begin).begin, page_of(range.end - 1).end});
        *left++ = write;
        continue;
      }
      // Resolving failed work tells of it. What a failed copy brings is valid nowhere here.
      if (end.wait_for_error() != nullptr && !copied) failed_writes_.push_back(range);
      overrule(range);
    }
    expected_.erase(left, expected_.end());
    return busy;
  }

  /// The bytes whose newest values lie in this memory, at whichever place that shares it.
  static ByteRanges valid_here(Coherence const& coherence) {
    auto valid = coherence.valid(host_place);
    for (Place place = host_place + 1; place < coherence.place_count(); ++place) {
      if (coherence.shares_storage(place, host_place)) valid.add(coherence.valid(place));
    }
    return valid;
  }

  /// But for what is expected: that comes when it is done.
  [[nodiscard]] std::vector<std::byte> copy_of(ByteRange page) const {
    std::vector<std::byte> copy(page.size());
    ByteRanges still{page};
    for (auto const& write : expected_) still.remove(write.range);
    for (auto const part : still.ranges()) {
      std::memcpy(copy.data() + (part.begin - page.begin), memory_ + part.begin, part.size());
    }
    return copy;
  }

  /// What lies in `range` now is no user's write.
  void refresh_twins(ByteRange range) {
    auto const page = PageWatch::page_bytes();
    for (auto twin = twins_.lower_bound(range.begin / page * page); twin != twins_.end() && twin->first < range.end;
         ++twin) {
      auto const begin = std::max(twin->first, range.begin);
      auto const end = std::min(twin->first + twin->second.size(), range.end);
      std::memcpy(twin->second.data() + (begin - twin->first), memory_ + begin, end - begin);
    }
  }

  [[nodiscard]] ByteRange page_of(std::size_t offset) const noexcept {
    auto const begin = offset / PageWatch::page_bytes() * PageWatch::page_bytes();
    return {begin, std::min(begin + PageWatch::page_bytes(), bytes_)};
  }

  /// What failed work left on a page must not become the truth with the rest of it.
  void record_unless_failed(Coherence const& coherence, Record const& record, ByteRange written) const {
    if (coherence.written(host_place).contains(written)) return;
    ByteRanges rest{written};
    for (auto const range : failed_writes_) rest.remove(range);
    for (auto const part : rest.ranges()) {
      if (!coherence.written(host_place).contains(part)) record(part);
    }
  }

  /// `valid`: what is valid here, which a write of the host to parts of it does not change.
  std::optional<HostWriteConflict> absorb_page(Coherence const& coherence, ByteRanges const& valid,
                                               Record const& record, ByteRange page) {
    if (valid.contains(page)) {
      record_unless_failed(coherence, record, page);
      return std::nullopt;
    }
    auto const twin = twins_.find(page.begin);
    if (twin == twins_.end()) return clash(coherence, page);  // all of it is newer on a device
    std::vector<ByteRange> changed;
    for (auto at = page.begin; at < page.end;) {
      auto const differs = [&](std::size_t byte) { return memory_[byte] != twin->second[byte - page.begin]; };
      if (!differs(at)) {
        ++at;
        continue;
      }
      ByteRange run{at, at};
      while (run.end < page.end && differs(run.end)) ++run.end;
      changed.push_back(run);
      at = run.end;
    }
    for (auto const run : changed) {
      if (!valid.contains(run)) return clash(coherence, run);
    }
    for (auto const run : changed) record_unless_failed(coherence, record, run);
    std::memcpy(twin->second.data(), memory_ + page.begin, page.size());
    return std::nullopt;
  }

  /// The host wrote `range`, of which some device has newer bytes.
  static HostWriteConflict clash(Coherence const& coherence, ByteRange range) {
    HostWriteConflict conflict{range, host_place, range};
    for (Place place = host_place + 1; place < coherence.place_count(); ++place) {
      auto const newer = coherence.written(place).intersection(ByteRanges{range});
      if (newer.empty()) continue;
      conflict.device = place;
      conflict.on_device = *coherence.written(place).find(newer.ranges().front().begin);
      break;
    }
    return conflict;
  }

  std::shared_ptr<Replica> host_;
  std::byte const* memory_;
  std::size_t bytes_;
  PageWatch watch_;
  std::vector<ExpectedWrite> expected_;
  std::vector<ByteRange> failed_writes_;                 ///< of devices that share the memory, not yet taken back
  std::map<std::size_t, std::vector<std::byte>> twins_;  ///< by the page's offset: the host's bytes when it was shared
};

}  // namespace

std::unique_ptr<HostWrites> track_pages(std::shared_ptr<Replica> const& host, std::size_t bytes) {
  return std::make_unique<TrackedPages>(host, bytes);
}

}  // namespace unimem::detail
