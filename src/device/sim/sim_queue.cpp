#include "device/sim/sim_queue.hpp"
#include "device/host_memory.hpp"
#include "device/host_program.hpp"
#include "device/piece_grid.hpp"
#include "device/stopwatch.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// Keeps a command from ending sooner than the simulated hardware would let it.
class Pace {
 public:
  Pace(SimDevice const& device, double bytes_per_second, std::size_t bytes, std::size_t pieces = 1)
      : ends_(std::chrono::steady_clock::now() + device.options().latency) {
    if (bytes_per_second > 0) {
      ends_ += (pieces - 1) * SimDevice::time_of_a_row;
      std::chrono::duration<double> const moving{static_cast<double>(bytes) / bytes_per_second};
      ends_ += std::chrono::ceil<std::chrono::steady_clock::duration>(moving);
    }
  }

  /// To be called when the real work is done.
  void keep() const { std::this_thread::sleep_until(ends_); }

 private:
  std::chrono::steady_clock::time_point ends_;
};

void require(SimVerdict verdict, std::string_view call) {
  if (verdict != SimVerdict::succeed) throw_sim_error(call, verdict);
}

std::size_t sum(std::span<const CopyPiece> pieces) {
  std::size_t bytes = 0;
  for (auto const& piece : pieces) bytes += piece.bytes;
  return bytes;
}

/// What a kernel that failed half-way leaves where it may have written.
constexpr std::byte scribble{0xDB};

}  // namespace

Event SimQueue::submit(std::span<const Event> needs, HostExecutor::Task task) {
  if (!device_.options().heedless) return HostQueue::submit(needs, std::move(task));
  wait_for(needs);
  return HostQueue::submit(std::move(task));
}

bool SimQueue::takes_at_once(std::span<const CopyPiece> pieces) const {
  return device_.options().batches || grid_of(pieces);
}

Event SimQueue::upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) {
  return submit(terms.needs, [&device = device_, fault = device_.faults().next(SimCommand::upload), to, from, bytes,
                              meter = terms.meter] {
    require(fault->verdict(), "upload");
    Stopwatch const watch;
    Pace const pace{device, device.options().upload_bytes_per_second, bytes};
    std::memcpy(device.for_overwrite(to.window(0, bytes), "upload"), from, bytes);
    pace.keep();
    device.count_upload(bytes, watch.elapsed(), meter.get());
  });
}

Event SimQueue::download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  return submit(terms.needs, [&device = device_, fault = device_.faults().next(SimCommand::download), to, from, bytes,
                              meter = terms.meter] {
    require(fault->verdict(), "download");
    Stopwatch const watch;
    Pace const pace{device, device.options().download_bytes_per_second, bytes};
    std::memcpy(to, device.for_access(from.window(0, bytes), "download"), bytes);
    pace.keep();
    device.count_download(bytes, watch.elapsed(), meter.get());
  });
}

Event SimQueue::upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                              CopyTerms const& terms) {
  if (!takes_at_once(pieces)) return QueueBackend::upload_pieces(to, from, pieces, terms);
  return submit(terms.needs, [&device = device_, fault = device_.faults().next(SimCommand::upload), to, from,
                              copied = std::vector(pieces.begin(), pieces.end()), meter = terms.meter] {
    require(fault->verdict(), "upload");
    Stopwatch const watch;
    auto const bytes = sum(copied);
    Pace const pace{device, device.options().upload_bytes_per_second, bytes, copied.size()};
    for (auto const& piece : copied) {
      auto* const there = device.for_overwrite(to.window(piece.to, piece.bytes), "upload");
      std::memcpy(there, static_cast<std::byte const*>(from) + piece.from, piece.bytes);
    }
    pace.keep();
    device.count_upload(bytes, watch.elapsed(), meter.get(), copied.size());
  });
}

Event SimQueue::download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces,
                                CopyTerms const& terms) {
  if (!takes_at_once(pieces)) return QueueBackend::download_pieces(to, from, pieces, terms);
  return submit(terms.needs, [&device = device_, fault = device_.faults().next(SimCommand::download), to, from,
                              copied = std::vector(pieces.begin(), pieces.end()), meter = terms.meter] {
    require(fault->verdict(), "download");
    Stopwatch const watch;
    auto const bytes = sum(copied);
    Pace const pace{device, device.options().download_bytes_per_second, bytes, copied.size()};
    for (auto const& piece : copied) {
      auto const* const there = device.for_access(from.window(piece.from, piece.bytes), "download");
      std::memcpy(static_cast<std::byte*>(to) + piece.to, there, piece.bytes);
    }
    pace.keep();
    device.count_download(bytes, watch.elapsed(), meter.get(), copied.size());
  });
}

Event SimQueue::copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  return submit(terms.needs, [&device = device_, fault = device_.faults().next(SimCommand::copy), to, from, bytes,
                              meter = terms.meter] {
    require(fault->verdict(), "copy");
    Stopwatch const watch;
    Pace const pace{device, device.options().copy_bytes_per_second, bytes};
    auto const* const source = device.for_access(from.window(0, bytes), "copy");
    std::memcpy(device.for_overwrite(to.window(0, bytes), "copy"), source, bytes);
    pace.keep();
    device.count_copy(bytes, watch.elapsed(), meter.get());
  });
}

Event SimQueue::copy_from(DeviceMemory to, Device& other, DeviceMemory from, std::size_t bytes,
                          CopyTerms const& terms) {
  return submit(terms.needs, [&device = device_, &source = dynamic_cast<SimDevice&>(other),
                              fault = device_.faults().next(SimCommand::copy), to, from, bytes, meter = terms.meter] {
    auto const verdict = fault->verdict();
    require(source.is_lost() ? SimVerdict::lost : verdict, "copy");
    Stopwatch const watch;
    Pace const pace{device, device.options().peer_bytes_per_second, bytes};
    auto const* const bytes_there = source.for_access(from.window(0, bytes), "copy");
    std::memcpy(device.for_overwrite(to.window(0, bytes), "copy"), bytes_there, bytes);
    pace.keep();
    device.count_copy(bytes, watch.elapsed(), meter.get());
  });
}

Event SimQueue::fill(DeviceMemory to, std::span<const std::byte> pattern) {
  std::array<std::byte, 16> copied{};
  std::copy(pattern.begin(), pattern.end(), copied.begin());
  return submit(
      {}, [&device = device_, fault = device_.faults().next(SimCommand::fill), to, copied, size = pattern.size()] {
        require(fault->verdict(), "fill");
        Pace const pace{device, device.options().copy_bytes_per_second, to.bytes};
        repeat_pattern(device.for_overwrite(to, "fill"), to.bytes, std::span{copied}.first(size));
        pace.keep();
      });
}

Event SimQueue::run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
                    std::span<const Event> needs) {
  auto host = as_host_program(program, device_);
  return submit(needs, [&device = device_, fault = device_.faults().next(SimCommand::run), host = std::move(host),
                        range, copied = std::vector(arguments.begin(), arguments.end())] {
    auto const verdict = fault->verdict();
    if (verdict == SimVerdict::lost) throw_sim_error("run", verdict);
    Pace const pace{device, 0, 0};
    for (auto const& argument : copied) {
      if (argument.kind != KernelArgument::Kind::memory || argument.memory.empty()) continue;
      auto* const memory = device.for_access(argument.memory, "run");
      if (verdict == SimVerdict::fail && argument.writes) {
        std::memset(memory, std::to_integer<int>(scribble), argument.memory.bytes);
      }
    }
    if (verdict == SimVerdict::fail) throw_sim_error("run", verdict);
    host->run(range, copied);
    pace.keep();
  });
}

}  // namespace unimem::detail
