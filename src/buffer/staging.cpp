#include "buffer/staging.hpp"

#include <unimem/core/error.hpp>

#include "buffer/host_device.hpp"
#include "device/host_program.hpp"
#include "device/queue_control.hpp"
#include "manager/access_context.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

DeviceMemory at_address(void const* address, std::size_t bytes) noexcept {
  return {reinterpret_cast<std::uintptr_t>(address), 0, bytes};
}

/// What one thread copies at a time.
constexpr std::size_t share = std::size_t{64} << 10;

/// A copy of pieces on the host that several threads divide among them, which a queue's own is not. Like that, it never
/// begins if what it needs has failed.
class HostCopy {
 public:
  HostCopy(void* to, void const* from, std::span<const CopyPiece> pieces) {
    std::vector<CopyPiece> shares;
    shares.reserve(pieces.size());
    for (auto const& piece : pieces) {
      bytes_ += piece.bytes;
      for (std::size_t done = 0; done < piece.bytes; done += share) {
        shares.push_back({piece.to + done, piece.from + done, std::min(share, piece.bytes - done)});
      }
    }
    shares_ = shares.size();
    arguments_[0].memory = at_address(to, bytes_);
    arguments_[1].memory = at_address(from, bytes_);
    arguments_[1].writes = false;
    program_ =
        host_device().compile({"staging", "",
                               [shares = std::move(shares), bytes = bytes_](Range, std::size_t begin, std::size_t end,
                                                                            std::span<const HostArgument> arguments) {
                                 auto* const target = static_cast<std::byte*>(arguments[0].data);
                                 auto const* const source = static_cast<std::byte const*>(arguments[1].data);
                                 for (auto i = begin; i < end; ++i) {
                                   auto const& one = shares[i];
                                   std::memcpy(target + one.to, source + one.from, one.bytes);
                                 }
                                 // How long it took as a whole none of the threads knows.
                                 if (begin == 0) host_device().count_copy(bytes, std::nullopt);
                               }});
  }

  Event submit(Queue& queue, std::span<const Event> needs) const {
    return queue.run(program_, Range{shares_}, arguments_, needs);
  }
  /// In the calling thread, which others help.
  void run() const { as_host_program(program_, host_device())->run(Range{shares_}, arguments_); }

 private:
  std::size_t bytes_ = 0;
  std::size_t shares_ = 0;
  std::array<KernelArgument, 2> arguments_;
  std::shared_ptr<Program const> program_;
};

/// Pieces one behind the other, as they lie in the blocks.
class Packed {
 public:
  explicit Packed(std::span<const CopyPiece> pieces) : pieces_(pieces) {
    ends_.reserve(pieces.size());
    for (auto const& piece : pieces) ends_.push_back(bytes() + piece.bytes);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return ends_.empty() ? 0 : ends_.back(); }

  /// What of them lies in `chunk`: `each(piece, offset into the chunk)`.
  template <class Each>
  void for_each_in(ByteRange chunk, Each const& each) const {
    auto i = static_cast<std::size_t>(std::ranges::upper_bound(ends_, chunk.begin) - ends_.begin());
    for (auto at = chunk.begin; at < chunk.end; ++i) {
      auto const& piece = pieces_[i];
      auto const done = at - (ends_[i] - piece.bytes);
      auto const count = std::min(ends_[i], chunk.end) - at;
      each(CopyPiece{piece.to + done, piece.from + done, count}, at - chunk.begin);
      at += count;
    }
  }

  /// The way of a chunk into a block, and on from it.
  [[nodiscard]] std::vector<CopyPiece> into_block(ByteRange chunk) const {
    std::vector<CopyPiece> pieces;
    for_each_in(chunk, [&](CopyPiece piece, std::size_t at) { pieces.push_back({at, piece.from, piece.bytes}); });
    return pieces;
  }
  [[nodiscard]] std::vector<CopyPiece> out_of_block(ByteRange chunk) const {
    std::vector<CopyPiece> pieces;
    for_each_in(chunk, [&](CopyPiece piece, std::size_t at) { pieces.push_back({piece.to, at, piece.bytes}); });
    return pieces;
  }

 private:
  std::span<const CopyPiece> pieces_;
  std::vector<std::size_t> ends_;
};

ByteRanges sources_of(std::span<const CopyPiece> pieces) {
  ByteRanges ranges;
  for (auto const& piece : pieces) ranges.add({piece.from, piece.from + piece.bytes});
  return ranges;
}

ByteRanges targets_of(std::span<const CopyPiece> pieces) {
  ByteRanges ranges;
  for (auto const& piece : pieces) ranges.add({piece.to, piece.to + piece.bytes});
  return ranges;
}

/// Many small ranges: below this many the threads that gather them cost more than the driver's calls do, and larger
/// ones keep the bus busy by themselves. docs/decisions/small-pieces-and-rectangles.md.
constexpr std::size_t fewest_gathered = 64, largest_gathered = std::size_t{64} << 10;

}  // namespace

std::optional<Staging> Staging::between_devices(AccessContext& context, MemoryManager& manager,
                                                AcquireOptions const& options, std::size_t most) {
  constexpr std::size_t least = std::size_t{64} << 10;
  for (auto chunk = std::clamp(std::bit_ceil(most), least, chunk_bytes);; chunk /= 2) {
    try {
      return between_devices(context, manager, options, most, chunk);
    } catch (OutOfMemory const&) {
      if (chunk <= least) throw;
    }
  }
}

std::optional<Staging> Staging::between_devices(AccessContext& context, MemoryManager& manager,
                                                AcquireOptions const& options, std::size_t most, std::size_t chunk) {
  std::optional<Staging> staging{Staging(chunk)};
  for (std::size_t turn = 0; turn < staging->depth_ && turn * chunk < most; ++turn) {
    auto const bytes = std::min(chunk, most - turn * chunk);
    auto block = manager.acquire_pinned_or_not(context, bytes, options);
    if (!block) {
      for (auto& before : std::span{staging->blocks_}.first(turn)) {
        auto& pool = manager.pool(host_device(), before.location());
        context.room().keep(pool, std::move(before));
      }
      return std::nullopt;
    }
    staging->blocks_[turn] = *std::move(block);
  }
  return staging;
}

std::optional<Staging> Staging::pinned(MemoryManager& manager, AcquireOptions options, Queue& beside, std::size_t total,
                                       std::size_t depth) {
  options.queue = &beside;
  options.may_wait = false;
  // The pool itself: for a detour no resident is asked to give memory back.
  auto& pool = manager.pool(host_device(), Location::pinned);
  std::optional<Staging> staging{Staging(beside, std::min(depth, most_blocks))};
  try {
    // Whole chunks, whatever the last one needs: blocks of one size are found again.
    for (std::size_t turn = 0; turn < staging->depth_ && turn * chunk_bytes < total; ++turn) {
      staging->blocks_[turn] = pool.acquire(chunk_bytes, options);
      // Ready for `beside`, which may still be reading it: a device that comes first goes behind that.
      staging->last_[turn] = beside.record();
    }
  } catch (OutOfMemory const&) {
    // Documented: the copy goes directly, and is counted.
    staging.reset();
  }
  return staging;
}

Staging::~Staging() {
  if (beside_ != nullptr && blocks_[0] && last_[0] != Event{}) {
    // An event of the host's queue, in whose order the blocks are used next: its later work need not wait, that of
    // other queues finds them taken.
    try {
      std::vector<Event> used(last_.begin(), last_.end());
      std::erase(used, Event{});
      last_.fill(beside_->join(used));
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): then with the tickets that there are
    }
  }
  for (std::size_t turn = 0; turn < blocks_.size(); ++turn) {
    blocks_[turn].release(last_[turn]);
  }
}

Event Staging::pass(std::size_t total, Leg const& in, Leg const& out, Queue& ends_on, std::span<const Event> needs) {
  std::vector<Event> arrived;
  arrived.reserve((total - 1) / chunk_ + 1);
  for (std::size_t at = 0, turn = 0; at < total; at += chunk_, turn = (turn + 1) % depth_) {
    ByteRange const chunk{at, std::min(total, at + chunk_)};
    auto* const block = blocks_[turn].data();
    in.queue.wait(last_[turn]);
    auto const filled = in.submit(block, chunk, needs);
    last_[turn] = filled;
    last_[turn] = out.submit(block, chunk, {{filled}});
    arrived.push_back(last_[turn]);
  }
  return ends_on.join(arrived);
}

void Staging::wait() const noexcept {
  for (auto const event : last_) static_cast<void>(event.wait_for_error());
}

bool goes_by_the_host(Replica const& from, Replica const& to) {
  if (from.serves_host() || to.serves_host() || &from.device() == &to.device()) return false;
  return !to.device().copies_from(from.device());
}

bool gains_from_staging(Replica const& host, Device const& device, std::size_t bytes) noexcept {
  auto const threshold = device.staging_threshold();
  return threshold && bytes > *threshold && host.pageable();
}

bool gains_from_gathering(Replica const& host, Device const& device, ByteRanges const& ranges) noexcept {
  auto const count = ranges.ranges().size();
  return device.batches_copies() && host.pageable() && count >= fewest_gathered &&
         ranges.size_bytes() / count <= largest_gathered;
}

std::size_t rows_at_front(std::span<const ByteRange> ranges) noexcept {
  if (ranges.size() < 2) return ranges.size();
  auto const size = ranges[0].size(), pitch = ranges[1].begin - ranges[0].begin;
  std::size_t rows = 1;
  while (rows < ranges.size() && ranges[rows].size() == size && ranges[rows].begin >= ranges[rows - 1].end &&
         ranges[rows].begin - ranges[rows - 1].begin == pitch) {
    ++rows;
  }
  return rows;
}

bool takes_rows(Replica const& from, Replica const& to, std::size_t row_bytes) {
  if (from.serves_host() == to.serves_host()) return false;
  auto const& host = from.serves_host() ? from : to;
  auto const& device = (from.serves_host() ? to : from).device();
  return device.link_cost().row_seconds && !gains_from_staging(host, device, row_bytes);
}

bool gains_from_batching(Replica const& from, Replica const& to, ByteRanges const& ranges) noexcept {
  if (ranges.ranges().size() < 2 || from.serves_host() == to.serves_host()) return false;
  auto const& host = from.serves_host() ? from : to;
  auto const& device = (from.serves_host() ? to : from).device();
  return (device.batches_copies() && !host.pageable()) || gains_from_gathering(host, device, ranges);
}

std::vector<CopyPiece> in_place(ByteRanges const& ranges) {
  std::vector<CopyPiece> pieces;
  pieces.reserve(ranges.ranges().size());
  for (auto const range : ranges.ranges()) pieces.push_back({range.begin, range.begin, range.size()});
  return pieces;
}

std::optional<Event> gathered_at_once(MemoryPool& pool, Name name, Replica& from, Replica& to,
                                      std::shared_ptr<ByteRanges const> const& ranges, Queue& on,
                                      SharedMeter const& meter) {
  auto const pieces = in_place(*ranges);
  Packed const packed(pieces);
  if (packed.bytes() > Staging::chunk_bytes) return std::nullopt;
  if (!from.work().arrived({ranges->ranges().front().begin, ranges->ranges().back().end})) return std::nullopt;
  auto block = pool.acquire_cached(Staging::chunk_bytes, name);
  if (!block) return std::nullopt;
  ByteRange const whole{0, packed.bytes()};
  to.work().order_write(on, ranges);
  to.work().reserve(1);
  HostCopy(block.data(), from.host_address(), packed.into_block(whole)).run();
  auto const way = to.in_memory(packed.out_of_block(whole), &CopyPiece::to);
  auto const sent = on.upload(to.memory(), block.data(), way, {}, meter);
  block.release(sent);
  to.work().written_by(ranges, sent);
  return sent;
}

Event copy_staged(Staging& staging, Replica& from, Replica& to, std::span<const CopyPiece> pieces, Queue& first,
                  Queue& second, Queue& ends_on, SharedMeter const& meter) {
  auto const sources = std::make_shared<ByteRanges const>(sources_of(pieces));
  auto const targets = std::make_shared<ByteRanges const>(targets_of(pieces));
  std::vector<Event> needs;
  from.work().order_read(first, sources);
  to.work().order_write(second, targets);
  from.work().add_writers(sources, needs);

  Packed const packed(pieces);
  bool const from_host = from.serves_host(), to_host = to.serves_host();
  Event latest;  // of what has been submitted to the target
  Staging::Leg const in{first, [&](void* block, ByteRange chunk, std::span<const Event> behind) {
                          auto const way = from.in_memory(packed.into_block(chunk), &CopyPiece::from);
                          from.work().reserve(1);
                          auto const come = from_host ? HostCopy(block, from.host_address(), way).submit(first, behind)
                                                      : first.download(block, from.memory(), way, behind, meter);
                          from.work().read_by(sources, come);
                          return come;
                        }};
  Staging::Leg const out{second, [&](void* block, ByteRange chunk, std::span<const Event> come) {
                           auto const way = to.in_memory(packed.out_of_block(chunk), &CopyPiece::to);
                           auto so_far =
                               std::make_shared<ByteRanges const>(targets_of(packed.out_of_block({0, chunk.end})));
                           to.work().reserve(1);
                           auto const sent = to_host ? HostCopy(to.host_address(), block, way).submit(second, come)
                                                     : second.upload(to.memory(), block, way, come, meter);
                           to.work().written_by(std::move(so_far), sent);
                           latest = sent;
                           return sent;
                         }};
  Event event;
  try {
    event = staging.pass(packed.bytes(), in, out, ends_on, needs);
  } catch (...) {
    staging.wait();  // a caller that is told that there is no copy must not find some of it under way
    if (latest == Event{}) throw;
    // The target is no longer what it was: there is a copy, and it has failed.
    QueueControl::of(latest)->fail(latest.ticket(), std::current_exception());
    return latest;
  }
  // In place of what is on record of its chunks, so there is room.
  to.work().written_by(targets, event);
  return event;
}

}  // namespace unimem::detail
