#include "buffer/staging.hpp"

#include <unimem/core/error.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

DeviceMemory at_address(void* address, std::size_t bytes) noexcept {
  return {reinterpret_cast<std::uintptr_t>(address), 0, bytes};
}

/// A copy on the host that several threads share, which a queue's own is not. Like that, it never begins if what it
/// needs has failed.
std::shared_ptr<Program const> const& host_copy() {
  constexpr std::size_t piece = std::size_t{64} << 10;
  static auto const program = host_device().compile(
      {"staging", "", [](Range, std::size_t begin, std::size_t end, std::span<const HostArgument> arguments) {
         auto const bytes = arguments[0].bytes;
         auto const first = begin * piece, last = std::min(end * piece, bytes);
         std::memcpy(static_cast<std::byte*>(arguments[0].data) + first,
                     static_cast<std::byte const*>(arguments[1].data) + first, last - first);
         // Several threads share it: how long it took as a whole none of them knows.
         if (begin == 0) host_device().count_copy(bytes, std::nullopt);
       }});
  return program;
}

Event copy_on_host(Queue& queue, DeviceMemory to, DeviceMemory from, std::span<const Event> needs) {
  constexpr std::size_t piece = std::size_t{64} << 10;
  std::array<KernelArgument, 2> arguments;
  arguments[0].memory = to;
  arguments[1].memory = from;
  arguments[1].writes = false;
  return queue.run(host_copy(), Range{(to.bytes - 1) / piece + 1}, arguments, needs);
}

}  // namespace

Staging::Staging(MemoryManager& manager, AcquireOptions const& options, std::size_t total) {
  for (std::size_t turn = 0; turn < blocks_.size() && turn * chunk_bytes < total; ++turn) {
    auto const bytes = std::min(chunk_bytes, total - turn * chunk_bytes);
    try {
      blocks_[turn] = manager.acquire(host_device(), Location::pinned, bytes, options);
    } catch (OutOfMemory const&) {
      blocks_[turn] = manager.acquire(host_device(), Location::host, bytes, options);
    }
  }
}

std::optional<Staging> Staging::pinned(MemoryManager& manager, AcquireOptions options, Queue& beside,
                                       std::size_t total) {
  options.queue = &beside;
  options.may_wait = false;
  // The pool itself: for a detour nobody else is asked to give memory back.
  auto& pool = manager.pool(host_device(), Location::pinned);
  std::optional<Staging> staging{Staging(beside)};
  try {
    // Whole chunks, whatever the last one needs: blocks of one size are found again.
    for (std::size_t turn = 0; turn < staging->blocks_.size() && turn * chunk_bytes < total; ++turn) {
      staging->blocks_[turn] = pool.acquire(chunk_bytes, options);
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
      auto const sent = beside_->join({{last_[0], last_[1]}});
      last_ = {sent, sent};
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): then with the tickets that there are
    }
  }
  for (std::size_t turn = 0; turn < blocks_.size(); ++turn) {
    blocks_[turn].release(UNIMEM_MUTANT(staging_returned_early) ? Event{} : last_[turn]);
  }
}

Event Staging::pass(std::size_t total, Leg const& in, Leg const& out, Queue& ends_on, std::span<const Event> needs) {
  std::vector<Event> arrived;
  arrived.reserve((total - 1) / chunk_bytes + 1);
  for (std::size_t at = 0, turn = 0; at < total; at += chunk_bytes, turn ^= 1U) {
    ByteRange const chunk{at, std::min(total, at + chunk_bytes)};
    auto* const block = blocks_[turn].data();
    if (!UNIMEM_MUTANT(staging_recycled_early)) in.queue.wait(last_[turn]);
    auto const filled = in.submit(block, chunk, needs);
    last_[turn] = filled;
    last_[turn] = out.submit(block, chunk, {{filled}});
    arrived.push_back(last_[turn]);
  }
  return ends_on.join(arrived);
}

bool gains_from_staging(Storage const& host, Device const& device, std::size_t bytes) noexcept {
  auto const threshold = device.staging_threshold();
  return threshold && bytes > *threshold && host.pageable();
}

Event copy_staged(Staging& staging, Storage& from, ByteRange source, Storage& to, ByteRange target, Queue& first,
                  Queue& second, Queue& ends_on, SharedMeter const& meter) {
  std::vector<Event> needs;
  from.order_read(first, source);
  to.order_write(second, target);
  from.hazards().add_writers(source, needs);

  bool const from_host = from.serves_host(), to_host = to.serves_host();
  auto const here = from_host ? from.host_window(source) : from.window(source);
  auto const there = to_host ? to.host_window(target) : to.window(target);
  Staging::Leg const in{first, [&](void* block, ByteRange chunk, std::span<const Event> behind) {
                          auto const part = here.window(chunk.begin, chunk.size());
                          auto const come = from_host
                                                ? copy_on_host(first, at_address(block, chunk.size()), part, behind)
                                                : first.download(block, part, chunk.size(), behind, meter);
                          from.hazards().read_by(source, come);
                          return come;
                        }};
  Staging::Leg const out{second, [&](void* block, ByteRange chunk, std::span<const Event> come) {
                           auto const part = there.window(chunk.begin, chunk.size());
                           auto const sent = to_host ? copy_on_host(second, part, at_address(block, chunk.size()), come)
                                                     : second.upload(part, block, chunk.size(), come, meter);
                           to.hazards().written_by({target.begin, target.begin + chunk.end}, sent);
                           return sent;
                         }};
  auto const event = staging.pass(source.size(), in, out, ends_on, needs);
  to.hazards().written_by(target, event);
  return event;
}

}  // namespace unimem::detail
