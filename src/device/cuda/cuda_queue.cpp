#include "device/cuda/cuda_queue.hpp"

#include <unimem/core/error.hpp>

#include "device/at_end.hpp"
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/cuda_graph.hpp"
#include "device/cuda/cuda_program.hpp"
#include "device/host_memory.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::detail::cuda {
namespace {

/// Where the legacy default stream is meant, its own name: a null handle is no stream to hand out.
Stream named(Stream stream) noexcept {
  return stream == nullptr ? reinterpret_cast<Stream>(legacy_stream) : stream;
}

/// Lets a stream go on, also where the work brought an error: this is an order and no need.
class Raise final : public AtEnd {
 public:
  explicit Raise(std::shared_ptr<HostFlags::Flag> flag) noexcept : flag_(std::move(flag)) {}

 private:
  void work_has_ended() noexcept override { flag_->raise(); }

  std::shared_ptr<HostFlags::Flag> flag_;
};

/// The value that a pattern repeats in units of `Unit`, if it does.
template <class Unit>
std::optional<Unit> repeats(std::span<const std::byte> pattern) {
  if (pattern.size() % sizeof(Unit) != 0) return std::nullopt;
  Unit first{};
  std::memcpy(&first, pattern.data(), sizeof first);
  for (std::size_t i = sizeof first; i < pattern.size(); i += sizeof first) {
    if (std::memcmp(pattern.data() + i, &first, sizeof first) != 0) return std::nullopt;
  }
  return first;
}

}  // namespace

CudaQueue::CudaQueue(CudaDevice& device)
    : device_(device),
      driver_(device.driver()),
      stream_(std::make_shared<CommandStream>(device, device.events(), control())) {
  CommandStream::enter(stream_);
  control().set_waiter(stream_);
}

CudaQueue::CudaQueue(CudaDevice& device, Stream foreign)
    : device_(device),
      driver_(device.driver()),
      stream_(std::make_shared<CommandStream>(device, device.events(), control(), named(foreign))) {
  CommandStream::enter(stream_);
  control().set_waiter(stream_);
}

CudaQueue::~CudaQueue() {
  DriverStream::end(stream_);
}

void CudaQueue::check_alive(char const* call) const {
  if (driver_gone()) throw UnsupportedOperation(call, std::string(device_.id()), process_end_reason);
}

void CudaQueue::check_not_captured(char const* call) const {
  auto status = CaptureStatus::none;
  device_.health().check(driver_.cuStreamIsCapturing(stream_->stream(), &status), "cuStreamIsCapturing");
  if (status != CaptureStatus::none) {
    throw UnsupportedOperation(call, std::string(device_.id()),
                               "the stream is being captured into a graph: nothing of it runs now");
  }
}

unimem::Event CudaQueue::submit(char const* call, Load load, Given given) {
  check_alive(call);
  auto& events = stream_->events();
  auto const lock = stream_->submission();
  CurrentContext const current{device_.gpu()};
  check_not_captured(call);
  auto command = std::make_shared<Command>(events, call, load.moves, load.bytes, std::move(load.meter), load.copies);
  if (load.moves != Moves::nothing && events.timed()) command->begin_at(events.record(stream_->stream()));
  given.give(given.by, *command);
  try {
    command->end_at(events.record(stream_->stream()));
  } catch (...) {
    if (load.orders_only) throw;
    // The work is on its way and cannot be called off: it has a ticket, and since nothing tells its end, it is waited
    // for here and has failed.
    command->fail(std::current_exception());
    drain();
  }
  return stream_->append(std::move(command));
}

void CudaQueue::drain() noexcept {
  auto code = driver_.cuStreamSynchronize(stream_->stream());
  device_.health().note(code);
  while (code != Result::success && !device_.is_lost()) {  // refused by itself: what is in there goes on all the same
    std::this_thread::yield();
    code = driver_.cuStreamQuery(stream_->stream());
    if (code != Result::success && code != Result::not_ready) return device_.health().note(code);
  }
}

unimem::Event CudaQueue::upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) {
  wait_to_read(from, terms.needs);
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  constexpr auto call = "cuMemcpyHtoDAsync";
  return submit(call, {Moves::upload, bytes, terms.meter}, [&](Command&) {
    device_.health().check(driver_.cuMemcpyHtoDAsync(pointer(to), from, bytes, stream_->stream()), call);
  });
}

void CudaQueue::wait_to_read(void const* from, std::span<const unimem::Event> needs) {
  if (driver_gone()) return;
  auto const before = stream_->host_work();
  if (before.empty() && std::ranges::all_of(needs, &unimem::Event::ready)) return;
  if (std::ranges::any_of(needs, [](auto need) { return need.error() != nullptr; })) return;  // it will be skipped
  if (is_pinned(reinterpret_cast<DevicePointer>(from))) return;  // read in the stream's turn
  for (auto const need : needs) static_cast<void>(need.wait_for_error());
  for (auto const event : before) static_cast<void>(event.wait_for_error());
}

bool CudaQueue::is_pinned(DevicePointer host) const {
  CurrentContext const current{device_.gpu()};
  auto type = MemoryType::device;
  auto const code = driver_.cuPointerGetAttribute(&type, PointerAttribute::memory_type, host);
  return code == Result::success && type == MemoryType::host;
}

unimem::Event CudaQueue::download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  constexpr auto call = "cuMemcpyDtoHAsync";
  return submit(call, {Moves::download, bytes, terms.meter}, [&](Command&) {
    device_.health().check(driver_.cuMemcpyDtoHAsync(to, pointer(from), bytes, stream_->stream()), call);
  });
}

unimem::Event CudaQueue::copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  constexpr auto call = "cuMemcpyDtoDAsync";
  return submit(call, {Moves::copy, bytes, terms.meter}, [&](Command&) {
    device_.health().check(driver_.cuMemcpyDtoDAsync(pointer(to), pointer(from), bytes, stream_->stream()), call);
  });
}

unimem::Event CudaQueue::copy_from(DeviceMemory to, unimem::Device& other, DeviceMemory from, std::size_t bytes,
                                   CopyTerms const& terms) {
  auto& peer = dynamic_cast<CudaDevice&>(other);  // `copies_from` said that it is one
  device_.reach(peer);
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  constexpr auto call = "cuMemcpyPeerAsync";
  return submit(call, {Moves::copy, bytes, terms.meter}, [&](Command&) {
    device_.health().check(driver_.cuMemcpyPeerAsync(pointer(to), device_.gpu().context, pointer(from),
                                                     peer.gpu().context, bytes, stream_->stream()),
                           call);
  });
}

unimem::Event CudaQueue::fill(DeviceMemory to, std::span<const std::byte> pattern) {
  auto const at = pointer(to);
  auto const stream = stream_->stream();
  auto& health = device_.health();
  if (auto const byte = repeats<unsigned char>(pattern)) {
    constexpr auto call = "cuMemsetD8Async";
    return submit(call, {},
                  [&](Command&) { health.check(driver_.cuMemsetD8Async(at, *byte, to.bytes, stream), call); });
  }
  // The driver sets wider units at their multiples only.
  if (auto const half = repeats<std::uint16_t>(pattern); half && at % sizeof *half == 0) {
    constexpr auto call = "cuMemsetD16Async";
    return submit(call, {}, [&](Command&) {
      health.check(driver_.cuMemsetD16Async(at, *half, to.bytes / sizeof *half, stream), call);
    });
  }
  if (auto const word = repeats<std::uint32_t>(pattern); word && at % sizeof *word == 0) {
    constexpr auto call = "cuMemsetD32Async";
    return submit(call, {}, [&](Command&) {
      health.check(driver_.cuMemsetD32Async(at, *word, to.bytes / sizeof *word, stream), call);
    });
  }
  return submit("cuMemcpyDtoDAsync", {}, [&](Command& command) { fill_by_doubling(command, at, to.bytes, pattern); });
}

void CudaQueue::fill_by_doubling(Command& command, DevicePointer to, std::size_t bytes,
                                 std::span<const std::byte> pattern) {
  constexpr std::size_t seed_bytes = 4096;  // what the host spells out
  auto const seed = std::make_shared<std::vector<std::byte>>(std::min(bytes, seed_bytes));
  repeat_pattern(seed->data(), seed->size(), pattern);
  command.keep(seed);
  auto& health = device_.health();
  auto const stream = stream_->stream();
  health.check(driver_.cuMemcpyHtoDAsync(to, seed->data(), seed->size(), stream), "cuMemcpyHtoDAsync");
  try {
    for (auto filled = seed->size(); filled < bytes;) {
      auto const count = std::min(filled, bytes - filled);
      health.check(driver_.cuMemcpyDtoDAsync(to + filled, to, count, stream), "cuMemcpyDtoDAsync");
      filled += count;
    }
  } catch (DeviceError const&) {
    command.fail(std::current_exception());  // some of it is filled
  }
}

unimem::Event CudaQueue::run(std::shared_ptr<Program const> program, Range range,
                             std::span<const KernelArgument> arguments, std::span<const unimem::Event> needs) {
  auto const* const ours = dynamic_cast<CudaProgram const*>(program.get());
  if (ours == nullptr || ours->context() != device_.gpu().context) {
    throw KernelError(ours == nullptr ? "program" : ours->name(), fmt::format("was not made by {}", device_.id()));
  }
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  return submit("cuLaunchKernel", {}, [&](Command& command) {
    try {
      ours->launch(stream_->stream(), range, arguments);
    } catch (DeviceError const& error) {
      device_.health().note(static_cast<Result>(error.code));
      throw;
    }
    command.keep(std::move(program));
  });
}

std::shared_ptr<CapturedRuns const> CudaQueue::capture(std::span<const ProgramRun> runs) {
  constexpr auto call = "cuStreamBeginCapture";
  check_alive(call);
  CurrentContext const current{device_.gpu()};
  check_not_captured(call);
  return std::make_shared<CudaGraph>(device_.gpu(), device_.health(), runs);
}

unimem::Event CudaQueue::run_captured(std::shared_ptr<CapturedRuns const> captured,
                                      std::span<const unimem::Event> needs) {
  auto const* const graph = dynamic_cast<CudaGraph const*>(captured.get());
  if (graph == nullptr || graph->context() != device_.gpu().context) {
    throw KernelError("captured runs", fmt::format("were not captured on {}", device_.id()));
  }
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  constexpr auto call = "cuGraphLaunch";
  return submit(call, {}, [&](Command& command) {
    device_.health().check(graph->launch(stream_->stream()), call);
    command.keep(std::move(captured));  // what runs is in there
  });
}

std::optional<unimem::Event> CudaQueue::prefetch(DeviceMemory memory, bool to_host) {
  constexpr auto call = "cuMemPrefetchAsync";
  auto const where = to_host ? MemoryLocation{LocationType::host, 0} : device_.location();
  return submit(call, {}, [&](Command&) {
    device_.health().check(driver_.cuMemPrefetchAsync(pointer(memory), memory.bytes, where, 0, stream_->stream()),
                           call);
  });
}

unimem::Event CudaQueue::run_native(std::function<void(void*)> const& submit_work,
                                    std::span<const unimem::Event> needs) {
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  check_alive("native work");
  auto const users_mode = ThreadCaptureMode(driver_, CaptureMode::relaxed).before();
  return submit("native work", {}, [&](Command& command) {
    ThreadCaptureMode const as_before{driver_, users_mode};
    try {
      submit_work(stream_->stream());
    } catch (...) {
      command.fail(std::current_exception());
    }
  });
}

unimem::Event CudaQueue::mark() {
  return submit("cuEventRecord", {.orders_only = true}, [](Command&) {});
}

void CudaQueue::wait(unimem::Event event) {
  constexpr auto call = "cuStreamWaitEvent";
  check_alive(call);
  auto const awaited_stream = CommandStream::find(event.queue_id());
  if (!awaited_stream) return wait_for_host(event);
  if (auto const before = awaited_stream->host_work(); !before.empty()) stream_->waits_for(before);
  auto const awaited = awaited_stream->command(event.ticket());
  if (!awaited) return;
  if (awaited->end() == nullptr) return;  // it had ended when it got its ticket
  auto const lock = stream_->submission();
  CurrentContext const current{device_.gpu()};
  check_not_captured(call);
  device_.health().check(driver_.cuStreamWaitEvent(stream_->stream(), awaited->end(), 0), call);
}

void CudaQueue::wait_for_host(unimem::Event event) {
  stream_->waits_for({&event, 1});
  if (device_.is_lost()) return;  // nothing comes after the wait
  std::shared_ptr<HostFlags::Flag> flag;
  std::unique_ptr<Raise> raise;
  auto refused = Result::success;
  bool stands = false;  // in the stream, which nothing will let go yet
  try {
    submit("cuStreamWaitValue32", {.orders_only = true}, [&](Command& command) {
      flag = device_.flags().take();
      raise = std::make_unique<Raise>(flag);
      refused = driver_.cuStreamWaitValue32(stream_->stream(), flag->address(), 1, wait_value_at_least);
      stands = refused == Result::success;
      if (stands) command.keep(flag);
    });
  } catch (...) {
    if (stands) {
      flag->raise();
      CurrentContext const current{device_.gpu(), std::nothrow};
      drain();  // before the word has another owner
    }
    throw;
  }
  if (refused == Result::not_supported) return static_cast<void>(event.wait_for_error());
  device_.health().check(refused, "cuStreamWaitValue32");
  AtEnd::have(event, std::move(raise));
}

}  // namespace unimem::detail::cuda
