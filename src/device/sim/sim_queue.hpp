#pragma once

#include "device/host_queue.hpp"
#include "device/sim/sim_device.hpp"

namespace unimem::detail {

/// Work of a simulated device: it takes at least the time it was told to take, and ends as the fault plan says.
class SimQueue final : public HostQueue {
 public:
  explicit SimQueue(SimDevice& device) : device_(device) {}

  Event upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) override;
  Event download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  Event upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                      CopyTerms const& terms) override;
  Event download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces,
                        CopyTerms const& terms) override;
  Event copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  Event copy_from(DeviceMemory to, Device& other, DeviceMemory from, std::size_t bytes,
                  CopyTerms const& terms) override;
  Event fill(DeviceMemory to, std::span<const std::byte> pattern) override;
  Event run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
            std::span<const Event> needs) override;

 private:
  /// Whether one command copies them.
  [[nodiscard]] bool takes_at_once(std::span<const CopyPiece> pieces) const;
  Event submit(std::span<const Event> needs, HostExecutor::Task task);

  SimDevice& device_;  ///< tasks refer to it and never to the queue, whose destructor runs the last of them
};

}  // namespace unimem::detail
