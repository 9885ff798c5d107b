#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/cluster/block_distribution.hpp>
#include <unimem/cluster/change_list.hpp>
#include <unimem/cluster/exposed_memory.hpp>
#include <unimem/core/byte_ranges.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace unimem::mpi {

/// What an array has exchanged with other ranks since it was made, as this rank has asked for it.
struct ExchangeStatistics {
  std::uint64_t reads = 0;  ///< of other ranks' memory, one for each range that was brought
  std::uint64_t read_bytes = 0;
  std::uint64_t notices = 0;  ///< messages that say what has changed, and those that say nothing has
  std::uint64_t notice_bytes = 0;

  friend bool operator==(ExchangeStatistics, ExchangeStatistics) = default;
};

namespace detail {

/// What a rank has of a distributed array, untyped: a buffer of its own elements and of its halo, which of the halo is
/// current, and what the other ranks may read of its own elements: a copy of their edges as of the last fence, so that
/// a rank may go on writing while others read. A rank is to this what a place is to a buffer: ranges of bytes that are
/// valid there or not, and brought when they are needed.
///
/// Used by one thread at a time.
class HaloExchange {
 public:
  /// `buffer` is of the reach of this rank, zero, and there for as long as this is.
  HaloExchange(BufferCore& buffer, BlockDistribution blocks, int rank, std::size_t element_bytes,
               std::size_t message_bytes, MPI_Comm comm)
      : buffer_(&buffer),
        blocks_(blocks),
        rank_(rank),
        bytes_(element_bytes),
        message_bytes_(message_bytes),
        reach_(blocks_.reach(rank)),
        own_(blocks_.own(rank)),
        edges_(blocks_.edges(rank)),
        exposed_(comm, edges_.size() * bytes_),
        current_(in_buffer(reach_)) {
    for (int other = 0; other < blocks_.ranks(); ++other) {
      bool const sees_me = !blocks_.reach(other).common(own_).empty();
      bool const is_seen = !reach_.common(blocks_.own(other)).empty();
      if (other != rank && (sees_me || is_seen)) neighbours_.push_back(other);
    }
  }

  [[nodiscard]] bool is_current(IndexRange range) const noexcept { return current_.contains(in_buffer(range)); }

  /// Where elements of the reach are in the buffer.
  [[nodiscard]] ByteRange in_buffer(IndexRange range) const noexcept {
    return {(range.begin - reach_.begin) * bytes_, (range.end - reach_.begin) * bytes_};
  }

  /// Brings what of `range` is out of date, from its owners as of the last fence.
  void bring(IndexRange range) {
    // Of either side of this rank's own elements, which are always current.
    bring_side(range.common({reach_.begin, own_.begin}));
    bring_side(range.common({own_.end, reach_.end}));
  }

  /// Tells the neighbours what has changed in this rank's edges since the last fence, and gets to know the same.
  void fence() {
    auto const changes = store_changes_when_all_are_here();
    constexpr int tag = 1;
    std::vector<std::vector<std::byte>> sent;
    std::vector<MPI_Request> requests;
    sent.reserve(neighbours_.size());
    for (auto const other : neighbours_) {
      auto const visible = in_own(blocks_.reach(other).common(own_));
      auto const seen = changes.intersection(ByteRanges(visible));
      sent.push_back(encode(seen.ranges(), bytes_));
      requests.emplace_back(MPI_REQUEST_NULL);
      check(MPI_Isend(sent.back().data(), static_cast<int>(sent.back().size()), MPI_BYTE, other, tag, exposed_.comm(),
                      &requests.back()),
            "MPI_Isend");
      ++statistics_.notices;
      statistics_.notice_bytes += sent.back().size();
    }
    for (auto const other : neighbours_) {
      MPI_Message found = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Mprobe(other, tag, exposed_.comm(), &found, &status), "MPI_Mprobe");
      int size = 0;
      MPI_Get_count(&status, MPI_BYTE, &size);
      std::vector<std::byte> list(static_cast<std::size_t>(size));
      check(MPI_Mrecv(list.data(), size, MPI_BYTE, &found, MPI_STATUS_IGNORE), "MPI_Mrecv");
      outdate(other, list);
    }
    check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  }

  [[nodiscard]] BlockDistribution const& blocks() const noexcept { return blocks_; }
  [[nodiscard]] IndexRange own() const noexcept { return own_; }
  [[nodiscard]] IndexRange reach() const noexcept { return reach_; }
  [[nodiscard]] MPI_Comm comm() const noexcept { return exposed_.comm(); }
  [[nodiscard]] ExchangeStatistics statistics() const noexcept { return statistics_; }

 private:
  [[nodiscard]] ByteRange in_own(IndexRange range) const noexcept {
    return {(range.begin - own_.begin) * bytes_, (range.end - own_.begin) * bytes_};
  }

  void bring_side(IndexRange side) {
    auto const missing = current_.missing(in_buffer(side));
    if (missing.empty()) return;
    auto const reads = reads_of(missing);
    // Nothing else writes to a halo, so mapping it moves nothing.
    ByteRange const all{reads.front().range.begin, reads.back().range.end};
    auto const lease = buffer_->map(all, MapMode::write);
    auto* const memory = static_cast<std::byte*>(lease.address());
    ByteRanges brought;
    try {
      for (auto const& [owner, range] : reads) brought.add(range);
      read(reads, memory, all.begin);
    } catch (...) {
      buffer_->written_through_map(all, lease, brought);  // some of it may have been
      throw;
    }
    buffer_->written_through_map(all, lease, brought);
    current_.add(brought);
  }

  struct Read {
    int owner;
    ByteRange range;  ///< of the buffer
  };
  /// What to read of each owner for what is missing. Its bytes between two ranges are no older than what is there.
  [[nodiscard]] std::vector<Read> reads_of(std::vector<ByteRange> const& missing) const {
    std::vector<Read> reads;
    for (auto const owner : neighbours_) {
      auto const its = blocks_.own(owner).common(reach_);
      if (its.empty()) continue;
      auto const window = in_buffer(its);
      std::vector<ByteRange> of_it;
      for (auto const range : missing) {
        auto const begin = std::max(range.begin, window.begin);
        auto const end = std::min(range.end, window.end);
        if (begin < end) of_it.push_back({begin, end});
      }
      for (auto const range : joined(of_it, message_bytes_)) reads.push_back({owner, range});
    }
    return reads;
  }
  void read(std::vector<Read> const& reads, std::byte* memory, std::size_t base) {
    for (auto const& [owner, range] : reads) {
      auto const edges = blocks_.edges(owner);
      for (auto begin = range.begin; begin < range.end;) {
        auto const size = std::min<std::size_t>(range.end - begin, INT_MAX);
        auto const index = reach_.begin + begin / bytes_;
        auto const offset = edges.offset_of(index) * bytes_ + begin % bytes_;
        exposed_.begin_read(owner, offset, memory + (begin - base), size);
        ++statistics_.reads;
        statistics_.read_bytes += size;
        begin += size;
      }
    }
    for (std::size_t i = 0; i < reads.size(); ++i) {
      bool const is_last = i + 1 == reads.size() || reads[i + 1].owner != reads[i].owner;
      if (is_last) exposed_.finish_reads(reads[i].owner);
    }
  }

  /// Compares this rank's edges with what others may read of them, and stores what has changed once no rank reads any
  /// more: each says that it has come to its fence.
  ByteRanges store_changes_when_all_are_here() {
    ByteRanges changes;
    std::array<DeviceLease, 2> leases;
    std::array<IndexRange, 2> const edges{edges_.first, edges_.last};
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (edges[i].empty()) continue;
      leases[i] = buffer_->map(in_buffer(edges[i]), MapMode::read);
      find_changes(static_cast<std::byte const*>(leases[i].address()), stored(edges[i]), edges[i].size() * bytes_,
                   bytes_, in_own(edges[i]).begin, changes);
    }
    meet_neighbours();
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (edges[i].empty()) continue;
      auto const edge = in_own(edges[i]);
      auto const* const now = static_cast<std::byte const*>(leases[i].address());
      for (auto const range : changes.intersection(ByteRanges(edge)).ranges()) {
        std::memcpy(stored(edges[i]) + (range.begin - edge.begin), now + (range.begin - edge.begin), range.size());
      }
    }
    exposed_.store();
    return changes;
  }
  [[nodiscard]] std::byte* stored(IndexRange edge) const {
    return exposed_.memory() + edges_.offset_of(edge.begin) * bytes_;
  }
  void meet_neighbours() {
    constexpr int tag = 0;
    std::vector<MPI_Request> requests(2 * neighbours_.size(), MPI_REQUEST_NULL);
    auto* request = requests.data();
    for (auto const other : neighbours_) {
      check(MPI_Irecv(nullptr, 0, MPI_BYTE, other, tag, exposed_.comm(), request++), "MPI_Irecv");
      check(MPI_Isend(nullptr, 0, MPI_BYTE, other, tag, exposed_.comm(), request++), "MPI_Isend");
      ++statistics_.notices;
    }
    check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  }
  /// `list`: what has changed of another rank's own elements.
  void outdate(int other, std::vector<std::byte> const& list) {
    auto const its = blocks_.own(other);
    for (auto const range : decode(list, bytes_, its.size() * bytes_)) {
      IndexRange const changed{its.begin + range.begin / bytes_, its.begin + range.end / bytes_};
      auto const seen = changed.common(reach_);
      if (!seen.empty()) current_.remove(in_buffer(seen));
    }
  }

  BufferCore* buffer_;
  BlockDistribution blocks_;
  int rank_;
  std::size_t bytes_;  ///< of an element
  std::size_t message_bytes_;
  IndexRange reach_;
  IndexRange own_;
  BlockDistribution::Edges edges_;
  ExposedMemory exposed_;
  ByteRanges current_;  ///< of the buffer
  std::vector<int> neighbours_;
  ExchangeStatistics statistics_;
};

}  // namespace detail

}  // namespace unimem::mpi
