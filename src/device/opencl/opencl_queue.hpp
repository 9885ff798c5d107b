#pragma once

#include "device/opencl/command_stream.hpp"
#include "device/queue_backend.hpp"

#include <memory>
#include <mutex>
#include <span>

namespace unimem::detail::opencl {

class OpenClDevice;

/// An in-order command queue of the driver: each operation is enqueued without blocking and ends when the driver says
/// so. An operation the driver refuses at once throws and takes no ticket. Thread-safe.
class OpenClQueue final : public QueueBackend {
 public:
  /// `profiles`: the driver keeps the times of this queue's commands.
  OpenClQueue(OpenClDevice& device, QueueHandle queue, bool profiles);
  ~OpenClQueue() override;

  Event upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) override;
  Event download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  /// The rows of a rectangle are one command.
  Event upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                      CopyTerms const& terms) override;
  Event download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces,
                        CopyTerms const& terms) override;
  Event copy_pieces(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces,
                    CopyTerms const& terms) override;
  Event copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  Event fill(DeviceMemory to, std::span<const std::byte> pattern) override;
  Event run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
            std::span<const Event> needs) override;
  [[nodiscard]] std::shared_ptr<CapturedRuns const> capture(std::span<const ProgramRun> runs) override;
  /// If the driver refuses one of the runs, those before it have ended, and the event fails with all of them.
  Event run_captured(std::shared_ptr<CapturedRuns const> captured, std::span<const Event> needs) override;
  Event run_native(std::function<void(void*)> const& submit, std::span<const Event> needs) override;

  /// An event of a queue of the same device becomes a barrier in the driver. Any other is waited for here and now:
  /// OpenCL could be told of it only through a user event, and drivers that execute in the submitting thread (PoCL's
  /// `basic`) deadlock on those.
  void wait(Event event) override;
  Event mark() override;

  [[nodiscard]] void* native() const noexcept override { return stream_->queue(); }

  [[nodiscard]] std::shared_ptr<CommandStream> const& stream() const noexcept { return stream_; }

 private:
  /// The stream's submission lock, if the driver can still be called.
  [[nodiscard]] std::unique_lock<std::mutex> begin(char const* call);

  /// Copies by one command, which `enqueue(cl_event*)` gives the driver; it counts as `copies`.
  template <class Enqueue>
  Event transfer(char const* call, Moves moves, std::size_t bytes, CopyTerms const& terms, Enqueue const& enqueue,
                 std::size_t copies = 1);

  /// The end of all before it.
  void add_marker(Command& command);
  void add_turned_fill(Command& command, DeviceMemory to, std::span<const std::byte> pattern, std::size_t lead);

  OpenClDevice& device_;
  Api const& api_;
  std::shared_ptr<CommandStream> stream_;
};

}  // namespace unimem::detail::opencl
