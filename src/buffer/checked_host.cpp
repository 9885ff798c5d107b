#include <unimem/core/log.hpp>

#include "buffer/host_writes.hpp"
#include "buffer/replica.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// Fine enough to say where, coarse enough that checksums are few.
constexpr std::size_t block_bytes = 4096;

class CheckedHost final : public HostWrites {
 public:
  CheckedHost(std::shared_ptr<Replica> const& host, std::size_t bytes, std::string name, std::string const& last_marks)
      : host_(host),
        memory_(static_cast<char const*>(host->host_address())),
        bytes_(bytes),
        name_(std::move(name)),
        last_marks_(last_marks) {}

  std::optional<HostWriteConflict> collect(Coherence const& coherence, Record const& record, bool /*wait*/) override {
    ByteRanges changed;
    for (auto const& [begin, sum] : sums_) {
      if (sum_of(begin) != sum) changed.add(block_at(begin));
    }
    sums_.clear();
    for (auto const range : changed.ranges()) {
      log(LogLevel::error,
          fmt::format("{}: host bytes within [{}, {}) were written through a pointer kept from an earlier access, and "
                      "nobody said so; {}",
                      name_, range.begin, range.end,
                      last_marks_.empty() ? "nothing was declared before" : last_marks_));
      ++unmarked_;
      if (coherence.has_data() && coherence.valid(host_place).contains(range)) record(range);
    }
    return std::nullopt;
  }

  void expect(ByteRange range) override {
    expected_.push_back(range);
    overrule(range);
  }

  void declared(ByteRange range) override { overrule(range); }

  void not_expected(ByteRange range) override {
    auto const found = std::ranges::find(expected_, range);
    if (found != expected_.end()) expected_.erase(found);
  }

  std::uint64_t take_unmarked() noexcept override { return std::exchange(unmarked_, 0); }

  void wrote(ByteRange range) override { overrule(range); }

  void overrule(ByteRange range) override {
    sums_.erase(sums_.lower_bound(range.begin / block_bytes * block_bytes), sums_.lower_bound(range.end));
  }

  void remember(Coherence const& coherence) override {
    sums_.clear();
    // What is still arriving changes by itself.
    if (!coherence.has_data() || !host_->work().writes_ended_well({0, bytes_})) return;
    // What is newest here, by the host or by a device that shares its memory, may be written on; stale bytes are
    // watched all the more.
    auto newest = coherence.written(host_place);
    for (Place place = host_place + 1; place < coherence.place_count(); ++place) {
      if (coherence.shares_storage(place, host_place)) newest.add(coherence.written(place));
    }
    for (std::size_t begin = 0; begin < bytes_; begin += block_bytes) {
      auto const block = block_at(begin);
      bool const expected = std::ranges::any_of(
          expected_, [&](ByteRange range) { return range.begin < block.end && block.begin < range.end; });
      if (!expected && !newest.intersects(block)) sums_.emplace(begin, sum_of(begin));
    }
  }

 private:
  [[nodiscard]] ByteRange block_at(std::size_t begin) const noexcept {
    return {begin, std::min(begin + block_bytes, bytes_)};
  }
  [[nodiscard]] std::size_t sum_of(std::size_t begin) const {
    return std::hash<std::string_view>{}({memory_ + begin, block_at(begin).size()});
  }

  std::shared_ptr<Replica> host_;
  char const* memory_;
  std::size_t bytes_;
  std::string name_;
  std::string const& last_marks_;
  std::uint64_t unmarked_ = 0;
  std::vector<ByteRange> expected_;
  std::map<std::size_t, std::size_t> sums_;  ///< by the block's offset
};

}  // namespace

std::unique_ptr<HostWrites> check_host(std::shared_ptr<Replica> const& host, std::size_t bytes, std::string name,
                                       std::string const& last_marks) {
  return std::make_unique<CheckedHost>(host, bytes, std::move(name), last_marks);
}

}  // namespace unimem::detail
