#include "device/cpu/cpu_queue.hpp"
#include "device/host_memory.hpp"
#include "device/host_program.hpp"
#include "device/stopwatch.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace unimem::detail {
namespace {

std::byte* pointer(DeviceMemory memory) noexcept {
  return reinterpret_cast<std::byte*>(memory.object + memory.offset);
}

}  // namespace

Event CpuQueue::upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) {
  return submit(terms.needs, [&device = device_, to, from, bytes, meter = terms.meter] {
    Stopwatch const watch;
    std::memmove(pointer(to), from, bytes);  // it may be the very memory
    device.count_upload(bytes, watch.elapsed(), meter.get());
  });
}

Event CpuQueue::download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  return submit(terms.needs, [&device = device_, to, from, bytes, meter = terms.meter] {
    Stopwatch const watch;
    std::memmove(to, pointer(from), bytes);
    device.count_download(bytes, watch.elapsed(), meter.get());
  });
}

Event CpuQueue::copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) {
  return submit(terms.needs, [&device = device_, to, from, bytes, meter = terms.meter] {
    Stopwatch const watch;
    std::memcpy(pointer(to), pointer(from), bytes);
    device.count_copy(bytes, watch.elapsed(), meter.get());
  });
}

Event CpuQueue::fill(DeviceMemory to, std::span<const std::byte> pattern) {
  std::array<std::byte, 16> copied{};
  std::copy(pattern.begin(), pattern.end(), copied.begin());
  return submit(
      [to, copied, size = pattern.size()] { repeat_pattern(pointer(to), to.bytes, std::span{copied}.first(size)); });
}

Event CpuQueue::run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
                    std::span<const Event> needs) {
  return submit(needs, [host = as_host_program(program, device_), range,
                        copied = std::vector(arguments.begin(), arguments.end())] { host->run(range, copied); });
}

}  // namespace unimem::detail
