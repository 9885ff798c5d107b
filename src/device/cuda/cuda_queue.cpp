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
  if (!stream_->is_shared()) return;
  auto status = CaptureStatus::none;
  device_.health().check(driver_.cuStreamIsCapturing(stream_->stream(), &status), "cuStreamIsCapturing");
  if (status != CaptureStatus::none) {
    throw UnsupportedOperation(call, std::string(device_.id()),
                               "the stream is being captured into a graph: nothing of it runs now");
  }
}

void CudaQueue::Target::check(Result code, char const* call) const {
  device.health().check(code, call);
}

unimem::Event CudaQueue::submit_either(char const* call, Load load, Given given) {
  check_alive(call);
  auto const lock = stream_->submission();
  auto command =
      std::make_shared<Command>(stream_->events(), call, load.moves, load.bytes, std::move(load.meter), load.copies);
  if (stream_->holds_back()) {
    stream_->hold_back({.command = command, .moves = load.moves, .give = given.keep(given.later)});
    return stream_->append(std::move(command));
  }
  CurrentContext const current{device_.gpu()};
  check_not_captured(call);
  stream_->begin(*command, load.moves);
  given.give(given.now, *command);
  stream_->end(command, load.moves);
  return stream_->append(std::move(command));
}

unimem::Event CudaQueue::upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) {
  wait_to_read(from, terms.needs);
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  constexpr auto call = "cuMemcpyHtoDAsync";
  return submit(call, {Moves::upload, bytes, terms.meter}, [target = target(), to, from, bytes](Command&) {
    target.check(target.driver.cuMemcpyHtoDAsync(pointer(to), from, bytes, target.stream), call);
  });
}

void CudaQueue::wait_to_read(void const* from, std::span<const unimem::Event> needs) {
  if (driver_gone()) return;
  auto const before = stream_->host_work();
  if (before.empty() && std::ranges::all_of(needs, &unimem::Event::ready)) return;
  if (std::ranges::any_of(needs, [](auto need) { return need.error() != nullptr; })) return;  // it will be skipped
  if (is_pinned(reinterpret_cast<DevicePointer>(from))) return;  // read in the stream's turn
  auto const wait_for = [this](unimem::Event event) {
    {
      auto const lock = stream_->submission();
      if (!stream_->is_shared()) return stream_->hold_back({.behind = event, .to_its_end = true});
    }
    static_cast<void>(event.wait_for_error());
  };
  for (auto const need : needs) {
    if (!need.ready()) wait_for(need);
  }
  for (auto const event : before) wait_for(event);
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
  return submit(call, {Moves::download, bytes, terms.meter}, [target = target(), to, from, bytes](Command&) {
    target.check(target.driver.cuMemcpyDtoHAsync(to, pointer(from), bytes, target.stream), call);
  });
}

unimem::Event CudaQueue::copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  constexpr auto call = "cuMemcpyDtoDAsync";
  return submit(call, {Moves::copy, bytes, terms.meter}, [target = target(), to, from, bytes](Command&) {
    target.check(target.driver.cuMemcpyDtoDAsync(pointer(to), pointer(from), bytes, target.stream), call);
  });
}

unimem::Event CudaQueue::copy_from(DeviceMemory to, unimem::Device& other, DeviceMemory from, std::size_t bytes,
                                   CopyTerms const& terms) {
  auto& peer = dynamic_cast<CudaDevice&>(other);  // `copies_from` said that it is one
  device_.reach(peer);
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  constexpr auto call = "cuMemcpyPeerAsync";
  return submit(call, {Moves::copy, bytes, terms.meter}, [target = target(), &peer, to, from, bytes](Command&) {
    target.check(target.driver.cuMemcpyPeerAsync(pointer(to), target.device.gpu().context, pointer(from),
                                                 peer.gpu().context, bytes, target.stream),
                 call);
  });
}

unimem::Event CudaQueue::fill(DeviceMemory to, std::span<const std::byte> pattern) {
  auto const at = pointer(to);
  auto const into = target();
  if (auto const byte = repeats<unsigned char>(pattern)) {
    constexpr auto call = "cuMemsetD8Async";
    return submit(call, {}, [into, at, to, byte](Command&) {
      into.check(into.driver.cuMemsetD8Async(at, *byte, to.bytes, into.stream), call);
    });
  }
  // The driver sets wider units at their multiples only.
  if (auto const half = repeats<std::uint16_t>(pattern); half && at % sizeof *half == 0) {
    constexpr auto call = "cuMemsetD16Async";
    return submit(call, {}, [into, at, to, half](Command&) {
      into.check(into.driver.cuMemsetD16Async(at, *half, to.bytes / sizeof *half, into.stream), call);
    });
  }
  if (auto const word = repeats<std::uint32_t>(pattern); word && at % sizeof *word == 0) {
    constexpr auto call = "cuMemsetD32Async";
    return submit(call, {}, [into, at, to, word](Command&) {
      into.check(into.driver.cuMemsetD32Async(at, *word, to.bytes / sizeof *word, into.stream), call);
    });
  }
  auto const double_up = [into, at, to](Command& command, std::span<const std::byte> seed) {
    fill_by_doubling(into, command, at, to.bytes, seed);
  };
  return submit("cuMemcpyDtoDAsync", {}, double_up, pattern);
}

void CudaQueue::fill_by_doubling(Target const& target, Command& command, DevicePointer to, std::size_t bytes,
                                 std::span<const std::byte> pattern) {
  constexpr std::size_t seed_bytes = 4096;  // what the host spells out
  auto const seed = std::make_shared<std::vector<std::byte>>(std::min(bytes, seed_bytes));
  repeat_pattern(seed->data(), seed->size(), pattern);
  command.keep(seed);
  auto const& driver = target.driver;
  auto* const stream = target.stream;
  target.check(driver.cuMemcpyHtoDAsync(to, seed->data(), seed->size(), stream), "cuMemcpyHtoDAsync");
  try {
    for (auto filled = seed->size(); filled < bytes;) {
      auto const count = std::min(filled, bytes - filled);
      target.check(driver.cuMemcpyDtoDAsync(to + filled, to, count, stream), "cuMemcpyDtoDAsync");
      filled += count;
    }
  } catch (DeviceError const&) {
    command.fail(std::current_exception());  // some of it is filled
  }
}

struct CudaQueue::Launch {
  Target target;
  CudaProgram const* ours;
  std::shared_ptr<Program const> program;
  Range range;

  void operator()(Command& command, std::span<const KernelArgument> arguments) const {
    try {
      ours->launch(target.stream, range, arguments);
    } catch (DeviceError const& error) {
      target.device.health().note(static_cast<Result>(error.code));
      throw;
    }
    command.keep(program);
  }
  void check_fit(std::span<const KernelArgument> arguments) const { ours->check_fit(range, arguments); }
};

unimem::Event CudaQueue::run(std::shared_ptr<Program const> program, Range range,
                             std::span<const KernelArgument> arguments, std::span<const unimem::Event> needs) {
  auto const* const ours = dynamic_cast<CudaProgram const*>(program.get());
  if (ours == nullptr || ours->context() != device_.gpu().context) {
    throw KernelError(ours == nullptr ? "program" : ours->name(), fmt::format("was not made by {}", device_.id()));
  }
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  return submit("cuLaunchKernel", {}, Launch{target(), ours, std::move(program), range}, arguments);
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
  return submit(call, {}, [target = target(), graph, captured = std::move(captured)](Command& command) {
    target.check(graph->launch(target.stream), call);
    command.keep(captured);  // what runs is in there
  });
}

std::optional<unimem::Event> CudaQueue::prefetch(DeviceMemory memory, bool to_host) {
  constexpr auto call = "cuMemPrefetchAsync";
  auto const where = to_host ? MemoryLocation{LocationType::host, 0} : device_.location();
  return submit(call, {}, [target = target(), memory, where](Command&) {
    target.check(target.driver.cuMemPrefetchAsync(pointer(memory), memory.bytes, where, 0, target.stream), call);
  });
}

unimem::Event CudaQueue::run_native(std::function<void(void*)> const& submit_work,
                                    std::span<const unimem::Event> needs) {
  if (auto const skipped = skipped_behind(needs)) return *skipped;
  check_alive("native work");
  share();
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
  return submit("cuEventRecord", {}, [](Command&) {});
}

void CudaQueue::wait(unimem::Event event) {
  constexpr auto call = "cuStreamWaitEvent";
  check_alive(call);
  auto const other = CommandStream::find(event.queue_id());
  if (other) {
    if (auto const before = other->host_work(); !before.empty()) stream_->waits_for(before);
  }
  auto const awaited = other ? other->command(event.ticket()) : nullptr;
  if (other && !awaited) return;
  bool const in_driver = awaited && awaited->is_given();
  if (in_driver) other->prepare_to_wait(*awaited);
  auto const lock = stream_->submission();
  if (stream_->holds_back() || !(in_driver || stream_->is_shared())) return stream_->hold_back({.behind = event});
  CurrentContext const current{device_.gpu()};
  check_not_captured(call);
  if (!in_driver) return wait_by_word(event);
  if (awaited->end() == nullptr) return static_cast<void>(event.wait_for_error());
  device_.health().check(stream_->wait_in_driver(*awaited), call);
}

void* CudaQueue::native() const {
  if (!driver_gone()) share();
  return stream_->stream();
}

void CudaQueue::share() const {
  if (stream_->is_shared()) return;
  auto const lock = stream_->submission();
  CurrentContext const current{device_.gpu()};
  for (; auto const* const held = stream_->oldest_held(); stream_->drop_held()) {
    if (held->command) {
      stream_->give(*held);
    } else if (!held->behind.ready()) {
      wait_by_word(held->behind);
    }
  }
  stream_->share();
}

void CudaQueue::wait_by_word(unimem::Event event) const {
  constexpr auto call = "cuStreamWaitValue32";
  stream_->waits_for({&event, 1});
  if (device_.is_lost()) return;  // nothing comes after the wait
  auto const flag = device_.flags().take();
  auto raise = std::make_unique<Raise>(flag);
  auto command = std::make_shared<Command>(stream_->events(), call, Moves::nothing, 0, SharedMeter{}, 1);
  command->keep(flag);
  stream_->begin(*command, Moves::nothing);
  auto const refused = driver_.cuStreamWaitValue32(stream_->stream(), flag->address(), 1, wait_value_at_least);
  if (refused == Result::not_supported) return static_cast<void>(event.wait_for_error());
  device_.health().check(refused, call);
  try {
    stream_->end(command, Moves::nothing, true);
    stream_->append(std::move(command));
  } catch (...) {
    flag->raise();
    stream_->drain();  // before the word has another owner
    throw;
  }
  AtEnd::have(event, std::move(raise));
}

}  // namespace unimem::detail::cuda
