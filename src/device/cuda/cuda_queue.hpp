#pragma once

#include <unimem/device/queue.hpp>

#include "device/cuda/command_stream.hpp"
#include "device/piece_grid.hpp"
#include "device/queue_backend.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace unimem::detail::cuda {

class CudaDevice;

[[nodiscard]] inline DevicePointer pointer(DeviceMemory memory) noexcept {
  return memory.object + memory.offset;
}

/// An in-order queue over a stream: every operation is one or a few commands of the driver with an event behind them.
/// An operation the driver refuses at once throws and takes no ticket. Thread-safe.
///
/// The driver copies from and to pinned memory while the call has long returned. Pageable memory it reads before the
/// call returns, and writes before it returns: such a copy is as right, and holds up its caller, which also waits for
/// what an upload needs.
class CudaQueue final : public QueueBackend {
 public:
  explicit CudaQueue(CudaDevice& device);
  /// Over a stream that the user made and will destroy: events behind our work are recorded in the call that
  /// submits it, since later the stream may be gone.
  CudaQueue(CudaDevice& device, Stream foreign);
  ~CudaQueue() override;

  unimem::Event upload(DeviceMemory to, void const* from, std::size_t bytes, CopyTerms const& terms) override;
  unimem::Event download(void* to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  /// One ticket, and usually one call of the driver (`way_of_pieces`).
  unimem::Event upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                              CopyTerms const& terms) override;
  unimem::Event download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces,
                                CopyTerms const& terms) override;
  unimem::Event copy_pieces(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces,
                            CopyTerms const& terms) override;
  unimem::Event copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, CopyTerms const& terms) override;
  unimem::Event copy_from(DeviceMemory to, unimem::Device& other, DeviceMemory from, std::size_t bytes,
                          CopyTerms const& terms) override;
  unimem::Event fill(DeviceMemory to, std::span<const std::byte> pattern) override;
  unimem::Event run(std::shared_ptr<Program const> program, Range range, std::span<const KernelArgument> arguments,
                    std::span<const unimem::Event> needs) override;
  std::shared_ptr<CapturedRuns const> capture(std::span<const ProgramRun> runs) override;
  unimem::Event run_captured(std::shared_ptr<CapturedRuns const> captured,
                             std::span<const unimem::Event> needs) override;
  std::optional<unimem::Event> prefetch(DeviceMemory memory, bool to_host) override;
  unimem::Event run_native(std::function<void(void*)> const& submit, std::span<const unimem::Event> needs) override;
  unimem::Event mark() override;

  /// An event of any GPU's stream is waited for by the stream, and one of another backend by a word of host memory that
  /// is raised when the event has come: no thread is held up by either.
  void wait(unimem::Event event) override;

  [[nodiscard]] void* native() const noexcept override { return stream_->stream(); }

 private:
  /// What a command moves, and what counts it.
  struct Load {
    Moves moves = Moves::nothing;
    std::size_t bytes = 0;
    SharedMeter meter{};
    std::size_t copies = 1;    ///< that it counts as
    bool orders_only = false;  ///< changes nothing, so that it may be refused after it was given
  };
  /// Calls `give(command)`, which hands work to the driver, and takes a ticket for it. Throws what `give` throws, which
  /// has then left nothing in the stream. Work that was given and cannot be followed to its end has failed.
  template <class Give>
  unimem::Event submit(char const* call, Load load, Give const& give) {
    return submit(call, std::move(load),
                  {[](void const* by, Command& command) { (*static_cast<Give const*>(by))(command); }, &give});
  }
  /// The same, without its type.
  struct Given {
    void (*give)(void const* by, Command& command);
    void const* by;
  };
  unimem::Event submit(char const* call, Load load, Given given);
  void check_alive(char const* call) const;
  /// The context is current.
  void check_not_captured(char const* call) const;
  void fill_by_doubling(Command& command, DevicePointer to, std::size_t bytes, std::span<const std::byte> pattern);
  /// Copies pieces, either side by its base.
  unimem::Event move_pieces(Moves moves, DevicePointer to, DevicePointer from, std::span<const CopyPiece> pieces,
                            SharedMeter meter);
  void copy_each(Command& command, Moves moves, DevicePointer to, DevicePointer from,
                 std::span<const CopyPiece> pieces);
  void copy_one(Moves moves, DevicePointer to, DevicePointer from, std::size_t bytes);
  /// In batches of a size that drivers are known to bear. Where only some were given to the driver, the command fails.
  void copy_batches(Command& command, DevicePointer to, DevicePointer from, std::span<const CopyPiece> pieces);
  void copy_rectangle(Moves moves, DevicePointer to, DevicePointer from, PieceGrid const& grid);
  /// The address by which kernels reach pinned memory of the host, less the offset of the first byte of these pieces in
  /// it: for write-combined memory it is not the host's. Nothing where that is not one memory for all of them.
  [[nodiscard]] std::optional<DevicePointer> seen_by_kernels(DevicePointer host, std::span<const CopyPiece> pieces,
                                                             std::size_t CopyPiece::* offset) const;
  /// Whether the driver knows the host memory as pinned.
  [[nodiscard]] bool is_pinned(DevicePointer host) const;
  void wait_for_host(unimem::Event event);
  /// The driver reads pageable memory in the call that hands it the copy, whatever the stream waits for: what is to
  /// write there first is waited for before, be it needed or only ordered.
  void wait_to_read(void const* from, std::span<const unimem::Event> needs);
  /// Returns when nothing is left in the stream, or the GPU is lost.
  void drain() noexcept;

  CudaDevice& device_;
  Driver const& driver_;
  std::shared_ptr<CommandStream> stream_;
};

}  // namespace unimem::detail::cuda
