#include "share/sent_on_device.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <fmt/format.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// Memory that is exported, or was opened, for as long as work of this process may be at it.
class Passed {
 public:
  Passed(MemoryExporter& exporter, DeviceMemory memory) noexcept : exporter_(&exporter), memory_(memory) {}
  Passed(Passed const&) = delete;
  Passed& operator=(Passed const&) = delete;
  ~Passed() {
    static_cast<void>(work_.wait_for_error());
    exporter_->release(memory_);
  }

  [[nodiscard]] DeviceMemory memory() const noexcept { return memory_; }
  /// Has the work on it done, which `submit` begins with the memory of the buffer.
  void use(Queue& queue, BufferCore& buffer, ByteRange range, Intent intent,
           std::function<Event(DeviceMemory, std::span<const Event>)> const& submit) {
    Operand const operand{&buffer, range, intent};
    work_ =
        use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
          return submit(memory.front(), needs);
        });
    work_.wait();
  }

 private:
  MemoryExporter* exporter_;
  DeviceMemory memory_;
  Event work_;
};

/// This process's device on that hardware, the one that is preferred if it is.
Device& device_on(std::string_view hardware_id, Device* preferred) {
  if (preferred != nullptr && preferred->hardware_id() == hardware_id) return *preferred;
  std::vector<std::string> known;
  for (Device& one : devices()) {
    auto id = one.hardware_id();
    if (id == hardware_id) return one;
    if (!id.empty()) known.push_back(std::move(id));
  }
  throw NotFound("device", std::string(hardware_id), known, "it is the one that the buffer was sent from");
}

MemoryExporter& exporter_of(Device& device) {
  if (auto* const exporter = device.exporter()) return *exporter;
  throw UnsupportedOperation("memory of another process", std::string(device.id()), "the device cannot open it");
}

}  // namespace

Device* sends(BufferCore const& buffer, ByteRange range) {
  if (range.empty() || buffer.missing_on(device("cpu"), range) == 0) return nullptr;
  for (auto* const one : buffer.devices_with_memory()) {
    if (!one->hands_memory_over() || one->hardware_id().empty() || buffer.missing_on(*one, range) != 0) continue;
    if (one->exporter() != nullptr) return one;
  }
  return nullptr;
}

UniqueFd copy_on(Device& device, BufferCore& buffer, ByteRange range) {
  auto& exporter = exporter_of(device);
  Passed copy(exporter, exporter.create(range.size()));
  auto& queue = device.default_queue();
  copy.use(queue, buffer, range, Intent::read, [&](DeviceMemory from, std::span<const Event> needs) {
    return queue.copy(copy.memory(), from, range.size(), needs);
  });
  return UniqueFd{exporter.descriptor_of(copy.memory())};
}

std::shared_ptr<BufferCore> from_copy_on(std::string_view hardware_id, UniqueFd descriptor, std::size_t bytes,
                                         BufferOptions&& options) {
  auto& device = device_on(hardware_id, options.device);
  auto& exporter = exporter_of(device);
  Passed copy(exporter, exporter.open(descriptor.get(), bytes));
  auto buffer = BufferCore::make(bytes, std::move(options));
  buffer->allocate(false, false);  // what has come has its memory, however strict it is
  auto& queue = device.default_queue();
  copy.use(queue, *buffer, {0, bytes}, Intent::write,
           [&](DeviceMemory to, std::span<const Event> needs) { return queue.copy(to, copy.memory(), bytes, needs); });
  return buffer;
}

}  // namespace unimem::detail
