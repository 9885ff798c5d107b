#include "device/opencl/opencl_queue.hpp"

#include <unimem/core/error.hpp>

#include "device/opencl/code.hpp"
#include "device/opencl/opencl_device.hpp"
#include "device/opencl/opencl_graph.hpp"
#include "device/opencl/opencl_program.hpp"
#include "device/piece_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace unimem::detail::opencl {
namespace {

/// Bytes into a row, rows, and layers: what OpenCL calls an origin, or a region.
using Position = std::array<std::size_t, 3>;

/// Where a rectangle begins in an object, in rows of that pitch.
Position rectangle(std::size_t offset, std::size_t pitch) noexcept {
  return {offset % pitch, offset / pitch, 0};
}

Position shape_of(PieceGrid const& grid) noexcept {
  return {grid.first.bytes, grid.rows, 1};
}

std::size_t bytes_of(PieceGrid const& grid) noexcept {
  return grid.first.bytes * grid.rows;
}

}  // namespace

OpenClQueue::OpenClQueue(OpenClDevice& device, QueueHandle queue, bool profiles)
    : device_(device),
      api_(device.api()),
      stream_(std::make_shared<CommandStream>(device, api_, std::move(queue), control(), profiles)) {
  control().set_waiter(stream_);
}

OpenClQueue::~OpenClQueue() {
  DriverStream::end(stream_);
}

std::unique_lock<std::mutex> OpenClQueue::begin(char const* call) {
  if (driver_gone()) throw UnsupportedOperation(call, std::string(device_.id()), process_end_reason);
  return stream_->submission();
}

template <class Enqueue>
Event OpenClQueue::transfer(char const* call, Moves moves, std::size_t bytes, CopyTerms const& terms,
                            Enqueue const& enqueue, std::size_t copies) {
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  auto const lock = begin(call);
  auto command = std::make_shared<Command>(api_, moves, bytes, terms.meter, stream_->tells_durations(), copies);
  command->add(call, enqueue);
  return stream_->append(std::move(command));
}

Event OpenClQueue::upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) {
  return transfer("clEnqueueWriteBuffer", Moves::upload, bytes, terms, [&](cl_event* event) {
    return api_.clEnqueueWriteBuffer(stream_->queue(), object_of(to), CL_FALSE, to.offset, bytes, from, 0, nullptr,
                                     event);
  });
}

Event OpenClQueue::download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  return transfer("clEnqueueReadBuffer", Moves::download, bytes, terms, [&](cl_event* event) {
    return api_.clEnqueueReadBuffer(stream_->queue(), object_of(from), CL_FALSE, from.offset, bytes, to, 0, nullptr,
                                    event);
  });
}

Event OpenClQueue::copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  return transfer("clEnqueueCopyBuffer", Moves::copy, bytes, terms, [&](cl_event* event) {
    return api_.clEnqueueCopyBuffer(stream_->queue(), object_of(from), object_of(to), from.offset, to.offset, bytes, 0,
                                    nullptr, event);
  });
}

Event OpenClQueue::upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                                 CopyTerms const& terms) {
  auto const grid = grid_of(pieces);
  if (!grid) return QueueBackend::upload_pieces(to, from, pieces, terms);
  auto const there = rectangle(to.offset + grid->first.to, grid->to_pitch), shape = shape_of(*grid);
  constexpr Position start{};
  auto const enqueue = [&](cl_event* event) {
    return api_.clEnqueueWriteBufferRect(stream_->queue(), object_of(to), CL_FALSE, there.data(), start.data(),
                                         shape.data(), grid->to_pitch, 0, grid->from_pitch, 0,
                                         static_cast<std::byte const*>(from) + grid->first.from, 0, nullptr, event);
  };
  return transfer("clEnqueueWriteBufferRect", Moves::upload, bytes_of(*grid), terms, enqueue, grid->rows);
}

Event OpenClQueue::download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces,
                                   CopyTerms const& terms) {
  auto const grid = grid_of(pieces);
  if (!grid) return QueueBackend::download_pieces(to, from, pieces, terms);
  auto const there = rectangle(from.offset + grid->first.from, grid->from_pitch), shape = shape_of(*grid);
  constexpr Position start{};
  auto const enqueue = [&](cl_event* event) {
    return api_.clEnqueueReadBufferRect(stream_->queue(), object_of(from), CL_FALSE, there.data(), start.data(),
                                        shape.data(), grid->from_pitch, 0, grid->to_pitch, 0,
                                        static_cast<std::byte*>(to) + grid->first.to, 0, nullptr, event);
  };
  return transfer("clEnqueueReadBufferRect", Moves::download, bytes_of(*grid), terms, enqueue, grid->rows);
}

Event OpenClQueue::copy_pieces(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces,
                               CopyTerms const& terms) {
  auto const grid = grid_of(pieces);
  // Within one object drivers have rules of their own on which rectangles overlap.
  if (!grid || to.object == from.object) return QueueBackend::copy_pieces(to, from, pieces, terms);
  auto const source = rectangle(from.offset + grid->first.from, grid->from_pitch);
  auto const target = rectangle(to.offset + grid->first.to, grid->to_pitch);
  auto const shape = shape_of(*grid);
  auto const enqueue = [&](cl_event* event) {
    return api_.clEnqueueCopyBufferRect(stream_->queue(), object_of(from), object_of(to), source.data(), target.data(),
                                        shape.data(), grid->from_pitch, 0, grid->to_pitch, 0, 0, nullptr, event);
  };
  return transfer("clEnqueueCopyBufferRect", Moves::copy, bytes_of(*grid), terms, enqueue, grid->rows);
}

Event OpenClQueue::fill(DeviceMemory to, std::span<const std::byte> pattern) {
  constexpr auto call = "clEnqueueFillBuffer";
  auto const lock = begin(call);
  auto command = std::make_shared<Command>(api_, stream_->tells_durations());
  // The driver fills from multiples of the pattern's size only; `lead` bytes come before the first of them.
  auto const lead = (pattern.size() - to.offset % pattern.size()) % pattern.size();
  if (lead == 0) {
    command->add(call, [&](cl_event* event) {
      return api_.clEnqueueFillBuffer(stream_->queue(), object_of(to), pattern.data(), pattern.size(), to.offset,
                                      to.bytes, 0, nullptr, event);
    });
  } else {
    add_turned_fill(*command, to, pattern, lead);
  }
  return stream_->append(std::move(command));
}

void OpenClQueue::add_turned_fill(Command& command, DeviceMemory to, std::span<const std::byte> pattern,
                                  std::size_t lead) {
  // The pattern as it looks from the first multiple on. The lead is its end, and what follows the body its beginning.
  auto const size = pattern.size(), body = to.bytes - size;
  auto const turned = std::make_shared<std::vector<std::byte>>(pattern.begin(), pattern.end());
  std::rotate(turned->begin(), turned->begin() + static_cast<std::ptrdiff_t>(lead), turned->end());
  command.keep = turned;
  command.add("clEnqueueWriteBuffer", [&](cl_event* event) {
    return api_.clEnqueueWriteBuffer(stream_->queue(), object_of(to), CL_FALSE, to.offset, lead,
                                     turned->data() + size - lead, 0, nullptr, event);
  });
  if (body != 0) {
    command.add("clEnqueueFillBuffer", [&](cl_event* event) {
      return api_.clEnqueueFillBuffer(stream_->queue(), object_of(to), turned->data(), size, to.offset + lead, body, 0,
                                      nullptr, event);
    });
  }
  command.add("clEnqueueWriteBuffer", [&](cl_event* event) {
    return api_.clEnqueueWriteBuffer(stream_->queue(), object_of(to), CL_FALSE, to.offset + lead + body, size - lead,
                                     turned->data(), 0, nullptr, event);
  });
}

Event OpenClQueue::run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
                       std::span<const Event> needs) {
  auto const& ours = own_program(device_, program.get());
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  auto const lock = begin("clEnqueueNDRangeKernel");
  auto command = std::make_shared<Command>(api_, stream_->tells_durations());
  command->keep = std::move(program);
  ours.enqueue(*command, stream_->queue(), range, arguments);
  return stream_->append(std::move(command));
}

std::shared_ptr<CapturedRuns const> OpenClQueue::capture(std::span<const ProgramRun> runs) {
  auto const lock = begin("clCreateKernel");
  return std::make_shared<OpenClGraph>(device_, runs);
}

Event OpenClQueue::run_captured(std::shared_ptr<CapturedRuns const> captured, std::span<const Event> needs) {
  auto const* const graph = dynamic_cast<OpenClGraph const*>(captured.get());
  if (graph == nullptr || graph->context() != device_.context()) {
    throw KernelError("captured runs", fmt::format("were not captured on {}", device_.id()));
  }
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  auto const lock = begin("clEnqueueNDRangeKernel");
  auto command = std::make_shared<Command>(api_, stream_->tells_durations());
  command->keep = std::move(captured);
  try {
    graph->enqueue(*command, stream_->queue());
  } catch (...) {
    if (command->events.empty()) throw;
    command->fail(std::current_exception());  // what ran so far is no use by itself
  }
  return stream_->append(std::move(command));
}

void OpenClQueue::wait(Event event) {
  auto const awaited_stream = device_.stream(event.queue_id());
  if (!awaited_stream) return static_cast<void>(event.wait_for_error());  // another driver's event: waited for here
  auto awaited = awaited_stream->events_of(event.ticket());
  if (awaited.empty()) return;
  std::vector<cl_event> list;
  list.reserve(awaited.size());
  for (auto const& one : awaited) list.push_back(one.event.get());
  constexpr auto call = "clEnqueueBarrierWithWaitList";
  auto const lock = begin(call);
  // The awaited events stay with the command, first: a barrier whose list holds a failure may end before the rest of
  // the list. (Not by add(): a refusal must not wait for another queue's work.)
  auto command = std::make_shared<Command>(api_);
  command->events = std::move(awaited);
  command->orders_only = true;
  cl_event barrier = nullptr;
  check(api_.clEnqueueBarrierWithWaitList(stream_->queue(), static_cast<cl_uint>(list.size()), list.data(), &barrier),
        call);
  command->events.push_back({EventHandle{api_, barrier}, call});
  stream_->append(std::move(command));
}

Event OpenClQueue::mark() {
  constexpr auto call = "clEnqueueMarkerWithWaitList";
  auto const lock = begin(call);
  auto command = std::make_shared<Command>(api_);
  add_marker(*command);
  return stream_->append(std::move(command));
}

Event OpenClQueue::run_native(std::function<void(void*)> const& submit, std::span<const Event> needs) {
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  auto const lock = begin("native work");
  auto command = std::make_shared<Command>(api_);
  try {
    submit(stream_->queue());
  } catch (...) {
    command->fail(std::current_exception());
  }
  add_marker(*command);
  return stream_->append(std::move(command));
}

void OpenClQueue::add_marker(Command& command) {
  command.add("clEnqueueMarkerWithWaitList",
              [&](cl_event* marker) { return api_.clEnqueueMarkerWithWaitList(stream_->queue(), 0, nullptr, marker); });
}

}  // namespace unimem::detail::opencl
