#include <unimem/device/device.hpp>

#include "manager/usage_shards.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

// What buffers of one name, or of one size, were used for.

namespace unimem::detail {
namespace {

/// Of those that live, so many of each shard speak for the use of their name.
constexpr std::size_t most_witnesses = 64;

bool on_the_host(Location location) noexcept {
  return location != Location::device;
}

/// What lines of one name say of it. A buffer has memory on the host, on devices, or on both: there have been as many
/// as the side has seen that has seen most.
class UseOfName {
 public:
  void add(UsageKey const& key, UsageCounts const& counts, std::uint64_t buffers, double seconds_alive) {
    use_.host_reads += counts.host_reads;
    use_.host_writes += counts.host_writes;
    use_.device_reads += counts.device_reads;
    use_.device_writes += counts.device_writes;
    bool const host = on_the_host(key.location);
    if (host) {
      use_.uploads += counts.copies_out;
      use_.uploaded_bytes += counts.bytes_out;
      use_.downloads += counts.copies_in;
      use_.downloaded_bytes += counts.bytes_in;
    }
    auto const* const side_of = host ? nullptr : key.device;
    auto side = std::ranges::find(sides_, side_of, &Side::device);
    if (side == sides_.end()) side = sides_.insert(sides_.end(), {side_of, 0, 0});
    side->buffers += buffers;
    side->seconds_alive += seconds_alive;
  }

  [[nodiscard]] RecordedUse all() const {
    auto use = use_;
    for (auto const& side : sides_) {
      if (side.buffers <= use.buffers) continue;
      use.buffers = side.buffers;
      use.seconds_alive = side.seconds_alive;
    }
    return use;
  }

 private:
  struct Side {
    Device const* device;
    std::uint64_t buffers;
    double seconds_alive;
  };
  RecordedUse use_;
  std::vector<Side> sides_;
};

}  // namespace

RecordedUse UsageBook::use_of(Name name) const {
  std::vector<Line*> lines;
  {
    std::lock_guard const lock{mutex_};
    auto const found = by_name_.find(name);
    if (found == by_name_.end()) return {};
    lines = found->second;
  }
  UseOfName use;
  auto const at = now();
  for (auto const* const line : lines) {
    for (std::size_t i = 0; i < shard_count; ++i) {
      UsageCounts counts;
      std::uint64_t buffers = 0;
      double seconds_alive = 0;
      {
        std::lock_guard const held{shards_[i].lock};
        auto const* const slot = shards_[i].find(line->key);
        if (slot == nullptr) continue;
        counts = slot->counts;
        buffers = slot->counts.releases;
        seconds_alive = seconds(slot->alive);
        std::size_t witnesses = 0;
        for (auto const* entry = slot->first; entry != nullptr && witnesses < most_witnesses; entry = entry->next_) {
          entry->add_uses_to(counts);
          seconds_alive += seconds(std::max<std::int64_t>(0, at - entry->since_));
          ++witnesses;
        }
        buffers += witnesses;
      }
      use.add(line->key, counts, buffers, seconds_alive);
    }
  }
  return use.all();
}

UseBySize UsageBook::use_by_size() const {
  std::vector<Name> names;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sizes;  // bytes and allocations of each
  {
    std::lock_guard const lock{mutex_};
    auto const counts = sums().of_lines;
    for (auto const& [name, lines] : by_name_) {
      std::uint64_t bytes = 0, allocations = 0;
      for (auto const* const line : lines) {
        bytes += counts[line->index].allocated_bytes;
        allocations += counts[line->index].allocations;
      }
      if (allocations == 0) continue;
      names.push_back(name);
      sizes.emplace_back(bytes, allocations);
    }
  }
  UseBySize use;
  for (std::size_t i = 0; i < names.size(); ++i) {
    auto const mean = sizes[i].first / sizes[i].second;
    auto& row = mean < (std::size_t{64} << 10) ? use.small : mean <= (std::size_t{16} << 20) ? use.medium : use.large;
    row += use_of(names[i]);
  }
  return use;
}

}  // namespace unimem::detail
