#include "stream/chunk_ring.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/pool/allocation.hpp>

#include "core/start_thread.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace unimem::detail {
namespace {

/// Between two questions whether to go on while nothing comes.
constexpr std::chrono::milliseconds between_checks{100};

void add(BufferStatistics& sum, BufferStatistics const& part) noexcept {
  sum.host_to_device_bytes += part.host_to_device_bytes;
  sum.host_to_device_copies += part.host_to_device_copies;
  sum.device_to_host_bytes += part.device_to_host_bytes;
  sum.device_to_host_copies += part.device_to_host_copies;
}

}  // namespace

/// One chunk's place in the ring. It belongs to one thread at a time; the conveyor passes it on.
struct ChunkRing::Slot {
  explicit Slot(Device& device) : queue(device.create_queue()) {}

  Allocation host;  ///< shared by chunk and results, where the chunk is done with before the results come back
  std::optional<UnifiedBuffer<std::byte>> chunk;
  std::optional<UnifiedBuffer<std::byte>> results;
  BufferStatistics moved;  ///< by chunks that are gone
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  std::span<const std::byte> window;   ///< the chunk, where it is a window of the file
  std::vector<std::uint64_t> digests;  ///< found while it was read, for a journal
  std::span<const std::byte> output;
  Queue queue;  ///< goes first, and waits for the work on the rest
};

ChunkRing::ChunkRing(MemoryManager& manager, Device& device, Input& input, ChunkRun& run, ChunkPlan const& plan)
    : manager_(manager), device_(device), input_(input), run_(run), plan_(plan) {
  if (plan_.mapped) windows_.emplace(*input_.only_file(), plan_.slots, plan_.chunk_bytes);
  for (std::size_t number = 0; number < plan_.slots; ++number) {
    try {
      slots_.push_back(make_slot());
    } catch (OutOfMemory const&) {
      // Documented: fewer slots serve, and the result tells how many. The memory that the failed one took goes back
      // with it.
      if (number == 0) throw;
      return;
    }
  }
}

ChunkRing::~ChunkRing() = default;

UnifiedBuffer<std::byte> ChunkRing::wrapped(void* memory, std::size_t bytes) const {
  BufferOptions options;
  options.manager = &manager_;
  options.device = &device_;
  return {Shape(bytes), BufferCore::make(bytes, std::move(options), BufferCore::Wrapped{memory, Ownership::borrow()})};
}

std::unique_ptr<ChunkRing::Slot> ChunkRing::make_slot() const {
  auto slot = std::make_unique<Slot>(device_);
  auto const result_bytes = run_.result_bytes(plan_.chunk_bytes);
  auto const named = [&](char const* name) {
    BufferOptions options;
    options.manager = &manager_;
    options.device = &device_;
    options.name = name;
    options.name_use = NameUse::reports;
    return options;
  };
  bool const shares_storage = device_.shares_storage_with_host();
  if (plan_.writes && result_bytes != 0 && !shares_storage) {
    // The chunk is on the device, and used up, before its results come back: the same host memory serves both.
    slot->host = manager_.acquire(device_, Location::host, plan_.chunk_bytes);
    slot->chunk = wrapped(slot->host.data(), plan_.chunk_bytes);
    slot->results = wrapped(slot->host.data(), result_bytes);
    slot->chunk->allocate(false, true);
    slot->results->allocate(false, true);
    return slot;
  }
  if (!plan_.mapped) {
    slot->chunk.emplace(Shape(plan_.chunk_bytes), named("stream chunk"));
    slot->chunk->allocate(true, true);
  }
  slot->results.emplace(Shape(result_bytes), named("stream results"));
  slot->results->allocate(plan_.reduces || shares_storage, true);
  return slot;
}

std::uint64_t ChunkRing::run(ChunkSinks const& sinks, std::stop_token const& cancel) {
  Conveyor conveyor(slots_.size());
  auto const begin = sinks.resumption != nullptr ? sinks.resumption->begin() : 0;
  auto const total = input_.bytes().value_or(0);
  std::uint64_t done = 0;
  bool through = false;
  auto const guarded = [&conveyor](auto work) {
    return [&conveyor, work] {
      try {
        work();
      } catch (...) {
        conveyor.stop(std::current_exception());
      }
    };
  };
  {
    std::stop_callback const stop_when_cancelled(cancel, [&] { conveyor.stop(nullptr); });
    std::jthread reader;
    std::jthread writer;
    guarded([&] {
      if (sinks.progress) sinks.progress(begin, total);
      reader = detail::start_thread<std::jthread>("reading a stream", guarded([&] { read_all(conveyor, sinks); }));
      if (plan_.writes) {
        writer = detail::start_thread<std::jthread>("writing a stream", guarded([&] { write_all(conveyor, sinks); }));
      }
      while (!through) {
        auto const news = conveyor.wait_for_news(done, between_checks);
        if (conveyor.stopping()) return;
        if (news.submitted != Conveyor::none) take_in(news.submitted, conveyor);
        through = news.through;
        bool const chunk_done = news.finished_bytes != done;
        bool const waited = news.submitted == Conveyor::none;
        if (sinks.check_interrupt && (chunk_done || waited)) sinks.check_interrupt();
        if (!chunk_done) continue;
        done = news.finished_bytes;
        if (sinks.progress) sinks.progress(begin + done, total);
      }
      // A thread that still waits for a slot has nothing more to do.
      conveyor.stop(nullptr);
    })();
  }
  if (auto const error = conveyor.error()) std::rethrow_exception(error);
  if (!through) throw StreamCancelled(input_.name(), begin + done, total);
  input_.check_size();
  return begin + done;
}

void ChunkRing::read_all(Conveyor& conveyor, ChunkSinks const& sinks) {
  auto const stopping = [&] { return conveyor.stopping(); };
  auto offset = sinks.resumption != nullptr ? sinks.resumption->begin() : 0;
  if (offset != 0) {
    input_.skip_to(offset);
    if (sinks.check != nullptr) sinks.check->go_on(offset, sinks.resumption->input_digests());
    input_.have_read({});  // which may be all
  }
  while (input_.bytes() != offset) {
    auto const number = conveyor.take_free();
    if (number == Conveyor::none) return;
    auto& slot = *slots_[number];
    slot.offset = offset;
    // Of two buffers over one memory the other's bytes are no more: no user wrote there behind its back.
    if (slot.host) slot.results->discard();
    slot.bytes = fill(number, offset, stopping);
    if (stopping()) return;
    if (slot.bytes == 0) break;
    run_.launch(slot.queue, *slot.chunk, *slot.results, slot.bytes);
    // The kernel is at work meanwhile.
    if (plan_.mapped) input_.have_read(slot.window);
    if (sinks.resumption != nullptr && sinks.check != nullptr) slot.digests = sinks.check->take_new();
    ++chunks_;
    offset += slot.bytes;
    conveyor.submitted(number);
  }
  conveyor.submitted_all();
}

std::size_t ChunkRing::fill(std::size_t number, std::uint64_t offset, std::function<bool()> const& stopping) {
  auto& slot = *slots_[number];
  auto const left = input_.bytes() ? *input_.bytes() - offset : plan_.chunk_bytes;
  auto const bytes = static_cast<std::size_t>(std::min<std::uint64_t>(plan_.chunk_bytes, left));
  if (!plan_.mapped) return input_.read(slot.chunk->host_overwrite(0, bytes), stopping);
  auto const window = windows_->open(number, offset, bytes, input_.retries(), stopping);
  slot.window = window;
  slot.chunk = wrapped(window.data(), window.size());
  return bytes;
}

void ChunkRing::take_in(std::size_t number, Conveyor& conveyor) {
  auto& slot = *slots_[number];
  // Not only the kernel's event: an upload that failed before it is an error of this chunk too.
  slot.queue.synchronize();
  auto const result_bytes = run_.result_bytes(slot.bytes);
  if (plan_.mapped) {
    windows_->check();
    add(slot.moved, slot.chunk->statistics());
    slot.chunk.reset();
    windows_->close(number);
  }
  if (plan_.writes) {
    if (slot.host) slot.chunk->discard();
    slot.output = (result_bytes == 0 ? slot.chunk : slot.results)->host_view(0, slot.bytes);
    conveyor.ready_to_write(number);
    return;
  }
  if (plan_.reduces) run_.combine(slot.results->host_view(0, result_bytes), slot.bytes);
  conveyor.finished(number, slot.bytes);
}

void ChunkRing::write_all(Conveyor& conveyor, ChunkSinks const& sinks) {
  for (;;) {
    auto const number = conveyor.take_to_write();
    if (number == Conveyor::none) return;
    auto& slot = *slots_[number];
    sinks.output->write(slot.output);
    if (sinks.resumption != nullptr) sinks.resumption->wrote(slot.output, std::move(slot.digests));
    conveyor.finished(number, slot.bytes);
  }
}

BufferStatistics ChunkRing::moved() const noexcept {
  BufferStatistics sum;
  for (auto const& slot : slots_) {
    add(sum, slot->moved);
    if (slot->chunk) add(sum, slot->chunk->statistics());
    if (slot->results) add(sum, slot->results->statistics());
  }
  return sum;
}

}  // namespace unimem::detail
