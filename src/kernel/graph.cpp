#include <unimem/kernel/graph.hpp>

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>

#include "core/nvtx.hpp"
#include "kernel/recording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace unimem {

struct Graph::State {
  Device& device;
  std::size_t launches;
  std::vector<detail::CapturedBuffer> buffers;
  std::shared_ptr<CapturedRuns const> runs;
};

namespace {

constexpr auto replaying = "launching a graph";

thread_local detail::Recording* of_thread = nullptr;

/// The part of a buffer's memory that a range lies in. Buffers without bytes have none.
DeviceMemory window(detail::CapturedBuffer const& captured, ByteRange range) {
  auto const memory = captured.lease.memory();
  return memory.empty() ? DeviceMemory{} : memory.window(range.begin, range.size());
}

/// What all launches together do to a buffer.
void add_operands(detail::CapturedBuffer const& captured, std::vector<Operand>& operands) {
  auto const add = [&](ByteRanges const& ranges, Intent intent) {
    for (auto const range : ranges.ranges()) operands.push_back({captured.buffer, range, intent});
  };
  auto only_read = captured.read, only_written = captured.written;
  only_read.remove(captured.written);
  only_written.remove(captured.read);
  add(only_read, Intent::read);
  add(only_written, Intent::write);
  add(captured.read.intersection(captured.written), Intent::read_write);
}

}  // namespace

namespace detail {

Recording::Recording(Queue& queue) : queue_(queue) {
  if (of_thread != nullptr) {
    throw UnsupportedOperation("capturing", std::string(queue.device().id()), "this thread captures already");
  }
  of_thread = this;
}

Recording::~Recording() {
  of_thread = nullptr;
  for (auto const& captured : buffers_) {
    if (!captured.life.expired()) captured.buffer->end_capture();
  }
}

Recording* Recording::of_this_thread() noexcept {
  return of_thread;
}

void Recording::add(Queue& queue, std::span<const Operand> operands,
                    std::function<ProgramRun(std::span<const DeviceMemory>)> const& run) {
  try {
    if (queue.id() != queue_.id()) {
      throw UnsupportedOperation("launching", std::string(queue.device().id()),
                                 "this thread captures launches of another queue");
    }
    std::vector<DeviceMemory> memory;
    memory.reserve(operands.size());
    for (auto const& operand : operands) memory.push_back(take(operand));
    runs_.push_back(run(memory));
    // Only now: what a launch writes is not there for itself to read.
    for (auto const& [buffer, range, intent] : operands) {
      if (intent == Intent::read) continue;
      std::ranges::find(buffers_, buffer, &CapturedBuffer::buffer)->written.add(range);
    }
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
    throw;
  }
}

DeviceMemory Recording::take(Operand const& operand) {
  auto const& [buffer, range, intent] = operand;
  auto found = std::ranges::find(buffers_, buffer, &CapturedBuffer::buffer);
  bool const begins = found == buffers_.end();
  if (!begins && found->life.expired()) {
    throw UnsupportedOperation("capturing a launch", "a buffer", "another one that was captured is gone");
  }
  std::vector<ByteRange> needed;
  if (intent != Intent::write && begins) needed.push_back(range);
  if (intent != Intent::write && !begins) needed = found->written.missing(range);
  if (begins) {
    CapturedBuffer captured{.buffer = buffer, .life = buffer->life(), .lease = {}, .read = {}, .written = {}};
    buffers_.reserve(buffers_.size() + 1);
    captured.lease = buffer->capture(queue_, range, needed, begins);
    buffers_.push_back(std::move(captured));
    found = buffers_.end() - 1;
  } else {
    static_cast<void>(buffer->capture(queue_, range, needed, begins));
  }
  for (auto const each : needed) found->read.add(each);
  return window(*found, range);
}

Graph Recording::finish() {
  if (failure_) std::rethrow_exception(failure_);
  for (auto const& captured : buffers_) {
    if (captured.life.expired()) throw UnsupportedOperation("capturing", "a buffer", "it is gone already");
  }
  auto const launches = runs_.size();
  auto runs = queue_.capture(std::move(runs_));
  Graph graph(std::make_unique<Graph::State>(Graph::State{queue_.device(), launches, {}, std::move(runs)}));
  for (auto const& captured : buffers_) captured.buffer->end_capture();
  graph.state_->buffers = std::exchange(buffers_, {});
  return graph;
}

}  // namespace detail

Graph::Graph(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

Graph::State const& Graph::state() const {
  if (!state_) detail::throw_empty_handle("graph");
  return *state_;
}

Device& Graph::device() const {
  return state().device;
}

std::size_t Graph::size() const noexcept {
  return state_ ? state_->launches : 0;
}

Event Graph::launch(Queue& queue) const {
  auto const& own = state();
  detail::NvtxRange const shown{[&] { return fmt::format("a graph of {} launches", own.launches); }};
  if (&queue.device() != &own.device) {
    throw UnsupportedOperation(replaying, std::string(queue.device().id()),
                               fmt::format("it was captured on {}", own.device.id()));
  }
  if (detail::Recording::of_this_thread() != nullptr) {
    throw UnsupportedOperation(replaying, std::string(own.device.id()), "this thread is capturing another");
  }
  std::vector<Operand> operands;
  std::vector<DeviceMemory> captured_memory;
  for (auto const& captured : own.buffers) {
    if (captured.life.expired()) {
      throw UnsupportedOperation(replaying, std::string(own.device.id()), "a buffer that it uses is gone");
    }
    auto const first = operands.size();
    add_operands(captured, operands);
    for (auto i = first; i < operands.size(); ++i) captured_memory.push_back(window(captured, operands[i].range));
  }
  return use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    if (!std::ranges::equal(memory, captured_memory)) {
      throw UnsupportedOperation(replaying, std::string(own.device.id()),
                                 "a buffer that it uses was freed or reset since, and has other memory now");
    }
    return queue.run(own.runs, needs);
  });
}

Graph capture(Queue& queue, std::function<void()> const& launches) {
  static_cast<void>(queue.device());  // throws for a queue that was moved from
  if (!launches) throw InvalidArgument("launches", "null", "something that launches");
  detail::Recording recording(queue);
  launches();
  return recording.finish();
}

}  // namespace unimem
