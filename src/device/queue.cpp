#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/queue.hpp>

#include "device/queue_backend.hpp"
#include "device/worker_threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

namespace unimem {
namespace {

void check_fits(std::size_t bytes, DeviceMemory memory) {
  if (bytes > memory.bytes) {
    throw InvalidArgument("bytes", fmt::format("{}", bytes), fmt::format("at most the memory's {}", memory.bytes));
  }
}

/// Where the driver has nothing to submit several runs with: the runs themselves.
class ListedRuns final : public CapturedRuns {
 public:
  ListedRuns(Device const& device, std::vector<ProgramRun> runs) : device_(&device), runs_(std::move(runs)) {}

  [[nodiscard]] Device const& device() const noexcept { return *device_; }
  [[nodiscard]] std::span<const ProgramRun> runs() const noexcept { return runs_; }

 private:
  Device const* device_;
  std::vector<ProgramRun> runs_;
};

/// The pieces that are any, having checked that the device's side of each lies in its memory.
std::vector<CopyPiece> checked(std::span<const CopyPiece> pieces, DeviceMemory memory, std::size_t CopyPiece::* side) {
  std::vector<CopyPiece> some;
  some.reserve(pieces.size());
  for (auto const& piece : pieces) {
    auto const offset = piece.*side;
    if (offset > memory.bytes || piece.bytes > memory.bytes - offset) {
      throw InvalidArgument("pieces", fmt::format("{} bytes from {} on", piece.bytes, offset),
                            fmt::format("within the memory's {}", memory.bytes));
    }
    if (piece.bytes != 0) some.push_back(piece);
  }
  return some;
}

/// Of pieces within one object: what has not been read must not be overwritten, in whichever order they go.
void check_apart(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces) {
  ByteRanges sources;
  for (auto const& piece : pieces) sources.add({from.offset + piece.from, from.offset + piece.from + piece.bytes});
  for (auto const& piece : pieces) {
    ByteRange const target{to.offset + piece.to, to.offset + piece.to + piece.bytes};
    if (!sources.intersects(target)) continue;
    throw InvalidArgument("to", fmt::format("offset {}", target.begin), "apart from every source");
  }
}

/// The same range, having checked that its groups are some and whole: what is left over would not be run.
Range in_whole_groups(Range range) {
  return range.has_group() ? range.group(range.group_size) : range;
}

}  // namespace

Program::~Program() = default;

void Program::check_range(Range /*range*/) const {}
CapturedRuns::~CapturedRuns() = default;

detail::QueueBackend::QueueBackend() : control_(QueueControl::create()) {}
detail::QueueBackend::~QueueBackend() = default;

Queue& detail::QueueBackend::host_side() {
  return host_side_.get([] { return std::make_unique<Queue>(device("cpu").create_queue()); });
}

Event detail::QueueBackend::copy_from(DeviceMemory, Device& other, DeviceMemory, std::size_t, CopyTerms const&) {
  throw UnsupportedOperation(fmt::format("copying from {}", other.id()), "this backend", "it copies through the host");
}

std::shared_ptr<CapturedRuns const> detail::QueueBackend::capture(std::span<const ProgramRun>) {
  return nullptr;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): those that have captured runs keep them
Event detail::QueueBackend::run_captured(std::shared_ptr<CapturedRuns const>, std::span<const Event>) {
  throw KernelError("captured runs", "they were captured on a device of another backend");
}

Event detail::QueueBackend::run_native(std::function<void(void*)> const&, std::span<const Event>) {
  throw UnsupportedOperation("native work", "this backend", "it has no queue of a driver's");
}

template <class Submit>
Event detail::QueueBackend::all_of(std::size_t count, std::span<const Event> needs, Submit const& submit) {
  std::vector<Event> events;
  events.reserve(count);
  try {
    for (std::size_t i = 0; i < count; ++i) {
      events.push_back(submit(i));
      control_.inherit(events.back().ticket(), needs);
    }
    auto const end = mark();
    control_.join(end.ticket(), events);
    return end;
  } catch (...) {
    for (auto const event : events) static_cast<void>(event.wait_for_error());
    if (events.empty()) throw;
    // What has begun has changed some of the target: it is work, and it has failed.
    control_.fail(events.back().ticket(), std::current_exception());
    return events.back();
  }
}

Event detail::QueueBackend::upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                                          CopyTerms const& terms) {
  return all_of(pieces.size(), terms.needs, [&](std::size_t i) {
    auto const [there, here, bytes] = pieces[i];
    return upload(to.window(there, bytes), static_cast<std::byte const*>(from) + here, bytes, terms);
  });
}

Event detail::QueueBackend::download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces,
                                            CopyTerms const& terms) {
  return all_of(pieces.size(), terms.needs, [&](std::size_t i) {
    auto const [here, there, bytes] = pieces[i];
    return download(static_cast<std::byte*>(to) + here, from.window(there, bytes), bytes, terms);
  });
}

Event detail::QueueBackend::copy_pieces(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces,
                                        CopyTerms const& terms) {
  return all_of(pieces.size(), terms.needs, [&](std::size_t i) {
    auto const [there, here, bytes] = pieces[i];
    return copy(to.window(there, bytes), from.window(here, bytes), bytes, terms);
  });
}

Queue::Queue(Device& device, std::unique_ptr<detail::QueueBackend> backend)
    : device_(&device), backend_(std::move(backend)) {}
Queue::Queue(Queue&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), backend_(std::move(other.backend_)) {}
Queue& Queue::operator=(Queue&& other) noexcept {
  device_ = std::exchange(other.device_, nullptr);
  backend_ = std::move(other.backend_);
  return *this;
}
Queue::~Queue() = default;

detail::QueueBackend& Queue::backend() const {
  if (!backend_) detail::throw_empty_handle("queue");
  return *backend_;
}

std::uint64_t Queue::id() const noexcept {
  return backend_ ? backend_->control().id() : 0;
}

/// Ties the fate of the work that `submit` submits to that of its needs.
template <class Submit>
Event Queue::after(std::span<const Event> needs, Submit const& submit) {
  auto inherited = detail::QueueControl::inherited_errors_of(needs);
  auto const event = submit();
  backend().control().inherit(event.ticket(), std::move(inherited));
  return event;
}

Event Queue::upload(DeviceMemory to, void const* from, std::size_t bytes, std::span<const Event> needs,
                    SharedMeter meter) {
  auto& queue = backend();
  check_fits(bytes, to);
  if (bytes == 0) return record();
  return after(needs, [&] { return queue.upload(to, from, bytes, {needs, std::move(meter)}); });
}

Event Queue::download(void* to, DeviceMemory from, std::size_t bytes, std::span<const Event> needs, SharedMeter meter) {
  auto& queue = backend();
  check_fits(bytes, from);
  if (bytes == 0) return record();
  return after(needs, [&] { return queue.download(to, from, bytes, {needs, std::move(meter)}); });
}

Event Queue::copy(DeviceMemory to, Device& other, DeviceMemory from, std::size_t bytes, std::span<const Event> needs,
                  SharedMeter meter) {
  auto& queue = backend();
  if (&other == device_) return copy(to, from, bytes, needs, std::move(meter));
  check_fits(bytes, to);
  check_fits(bytes, from);
  if (!device_->copies_from(other)) {
    throw UnsupportedOperation(fmt::format("copying from {}", other.id()), std::string(device_->id()),
                               "the two devices do not reach each other's memory");
  }
  if (bytes == 0) return record();
  return after(needs, [&] { return queue.copy_from(to, other, from, bytes, {needs, std::move(meter)}); });
}

Event Queue::upload(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces, std::span<const Event> needs,
                    SharedMeter meter) {
  auto& queue = backend();
  auto const some = checked(pieces, to, &CopyPiece::to);
  if (some.empty()) return record();
  if (some.size() == 1) {
    auto const& one = some.front();
    auto const* const begin = static_cast<std::byte const*>(from) + one.from;
    return upload(to.window(one.to, one.bytes), begin, one.bytes, needs, std::move(meter));
  }
  return after(needs, [&] { return queue.upload_pieces(to, from, some, {needs, std::move(meter)}); });
}

Event Queue::download(void* to, DeviceMemory from, std::span<const CopyPiece> pieces, std::span<const Event> needs,
                      SharedMeter meter) {
  auto& queue = backend();
  auto const some = checked(pieces, from, &CopyPiece::from);
  if (some.empty()) return record();
  if (some.size() == 1) {
    auto const& one = some.front();
    auto* const begin = static_cast<std::byte*>(to) + one.to;
    return download(begin, from.window(one.from, one.bytes), one.bytes, needs, std::move(meter));
  }
  return after(needs, [&] { return queue.download_pieces(to, from, some, {needs, std::move(meter)}); });
}

Event Queue::copy(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces, std::span<const Event> needs,
                  SharedMeter meter) {
  auto& queue = backend();
  static_cast<void>(checked(pieces, from, &CopyPiece::from));
  auto const some = checked(pieces, to, &CopyPiece::to);
  if (to.object == from.object) check_apart(to, from, some);
  if (some.empty()) return record();
  if (some.size() == 1) {
    auto const [there, here, bytes] = some.front();
    return copy(to.window(there, bytes), from.window(here, bytes), bytes, needs, std::move(meter));
  }
  return after(needs, [&] { return queue.copy_pieces(to, from, some, {needs, std::move(meter)}); });
}

Event Queue::copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, std::span<const Event> needs,
                  SharedMeter meter) {
  auto& queue = backend();
  check_fits(bytes, to);
  check_fits(bytes, from);
  if (to.object == from.object && to.offset < from.offset + bytes && from.offset < to.offset + bytes && bytes != 0) {
    throw InvalidArgument("to", fmt::format("offset {}", to.offset),
                          fmt::format("apart from the source at offset {}", from.offset));
  }
  if (bytes == 0) return record();
  return after(needs, [&] { return queue.copy(to, from, bytes, {needs, std::move(meter)}); });
}

Event Queue::prefetch(DeviceMemory memory, bool to_host) {
  auto& queue = backend();
  return memory.empty() ? record() : queue.prefetch(memory, to_host).value_or(record());
}

Event Queue::fill(DeviceMemory to, std::span<const std::byte> pattern) {
  auto& queue = backend();
  if (!std::has_single_bit(pattern.size()) || pattern.size() > 16) {
    throw InvalidArgument("pattern size", fmt::format("{}", pattern.size()), "1, 2, 4, 8 or 16 bytes");
  }
  if (to.bytes % pattern.size() != 0) {
    throw InvalidArgument("bytes", fmt::format("{}", to.bytes),
                          fmt::format("a multiple of the pattern's {}", pattern.size()));
  }
  return to.empty() ? record() : queue.fill(to, pattern);
}

Event Queue::run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
                 std::span<const Event> needs) {
  auto& queue = backend();
  if (!program) throw InvalidArgument("program", "null", "one that a device has compiled");
  range = in_whole_groups(range);
  if (range.items() == 0) return record();
  return after(needs, [&] { return queue.run(std::move(program), range, arguments, needs); });
}

std::shared_ptr<CapturedRuns const> Queue::capture(std::vector<ProgramRun> runs) {
  auto& queue = backend();
  std::erase_if(runs, [](ProgramRun const& run) {
    if (!run.program) throw InvalidArgument("program", "null", "one that a device has compiled");
    return in_whole_groups(run.range).items() == 0;
  });
  if (!runs.empty()) {
    if (auto captured = queue.capture(runs)) return captured;
  }
  return std::make_shared<ListedRuns>(*device_, std::move(runs));
}

Event Queue::run(std::shared_ptr<CapturedRuns const> captured, std::span<const Event> needs) {
  auto& queue = backend();
  if (!captured) throw InvalidArgument("captured", "null", "what a queue of the device has captured");
  auto const* const listed = dynamic_cast<ListedRuns const*>(captured.get());
  if (listed == nullptr) {
    return after(needs, [&] { return queue.run_captured(std::move(captured), needs); });
  }
  if (&listed->device() != device_) throw KernelError("captured runs", "they were captured on another device");
  Event last;
  std::vector<Event> all_needs(needs.begin(), needs.end());
  for (auto const& [program, range, arguments] : listed->runs()) {
    try {
      // Each needs the one before it, so that the last one fails with any of them.
      auto const next = run(program, range, arguments, all_needs);
      if (last == Event{}) all_needs.emplace_back();
      all_needs.back() = last = next;
    } catch (...) {
      if (last == Event{}) throw;
      queue.control().fail(last.ticket(), std::current_exception());  // what ran so far is no use by itself
      return last;
    }
  }
  return last == Event{} ? record() : last;
}

Event Queue::run_native(std::function<void(void*)> const& submit, std::span<const Event> needs) {
  auto& queue = backend();
  static_cast<void>(native_handle());  // throws where there is none
  if (!submit) throw InvalidArgument("submit", "null", "something to call");
  return after(needs, [&] { return queue.run_native(submit, needs); });
}

Event Queue::join(std::span<const Event> events) {
  auto& queue = backend();
  if (events.empty()) return {};
  if (events.size() == 1) return events.front();
  queue.wait_for(events);
  auto const event = queue.mark();
  queue.control().join(event.ticket(), events);
  return event;
}

Event Queue::mark() {
  return backend().mark();
}

Queue& Queue::host_side() {
  return backend().host_side();
}

void Queue::wait(Event event) {
  backend().wait_for({&event, 1});
}

Event Queue::record() const noexcept {
  if (!backend_) return {};
  auto& control = backend_->control();
  auto const last = control.submitted();
  return last == 0 ? Event{} : Event{&control, last};
}

void Queue::synchronize() {
  auto& control = backend().control();
  if (detail::is_forked_child()) record().wait();  // throws if there is work that cannot be carried out here
  auto const last = record();
  detail::await_end(last, detail::Watched::no);
  if (control.completed() < last.ticket()) last.wait();  // throws: what was waited for does not end
  if (auto const failure = control.take_error()) std::rethrow_exception(failure);
}

Ticket Queue::completed() const noexcept {
  return backend_ ? backend_->control().completed() : 0;
}

void* Queue::native_handle() const {
  if (auto* const native = backend().native()) return native;
  throw UnsupportedOperation("a native queue", std::string(device_->id()), "this backend has none");
}

}  // namespace unimem
