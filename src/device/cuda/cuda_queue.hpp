#pragma once

#include <unimem/device/queue.hpp>

#include "device/cuda/command_stream.hpp"
#include "device/piece_grid.hpp"
#include "device/queue_backend.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace unimem::detail::cuda {

class CudaDevice;

[[nodiscard]] inline DevicePointer pointer(DeviceMemory memory) noexcept {
  return memory.object + memory.offset;
}

/// An in-order queue over a stream: every operation is one or a few commands of the driver with an event behind them.
/// An operation the driver refuses at once throws and takes no ticket; what was held back behind host work
/// (`CommandStream`) has failed if it is refused then. Thread-safe.
///
/// The driver copies from and to pinned memory while the call has long returned. Pageable memory it reads before the
/// call returns, and writes before it returns: such a copy is as right, and holds up whoever gives it to the driver.
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

  /// An event of any GPU's stream is waited for by the stream. Behind one of another backend later work is held back;
  /// where others know the stream, it waits for a word of host memory that is raised when the event has come. The
  /// caller is held up by neither.
  void wait(unimem::Event event) override;

  /// Others know the stream from here on.
  [[nodiscard]] void* native() const override;

 private:
  /// What a command moves, and what counts it.
  struct Load {
    Moves moves = Moves::nothing;
    std::size_t bytes = 0;
    SharedMeter meter{};
    std::size_t copies = 1;  ///< that it counts as
  };
  /// What commands need of the queue, which may be gone by the time when they are given.
  struct Target {
    CudaDevice& device;
    Driver const& driver;
    Stream stream;

    void check(Result code, char const* call) const;
  };
  [[nodiscard]] Target target() const noexcept { return {device_, driver_, stream_->stream()}; }

  struct Launch;

  /// Calls `give(command, lists...)`, which hands work to the driver, and takes a ticket for it. Throws what `give`
  /// throws, which has then left nothing in the stream. Work that was given and cannot be followed to its end has
  /// failed. Where work is held back, copies of `give` and of the lists are kept for later, and what it throws then is
  /// the ticket's failure; what it can tell before (`check_fit`) is thrown here.
  template <class Give, class... Elements>
  unimem::Event submit(char const* call, Load load, Give const& give, std::span<Elements const>... lists) {
    auto const now = [&](Command& command) { give(command, lists...); };
    auto const later = [&]() -> std::function<void(Command&)> {
      if constexpr (requires { give.check_fit(lists...); }) give.check_fit(lists...);
      return [give, ... kept = std::vector<Elements>(lists.begin(), lists.end())](Command& command) {
        give(command, std::span<Elements const>{kept}...);
      };
    };
    return submit_either(
        call, std::move(load),
        {&now, [](void const* by, Command& command) { (*static_cast<decltype(now)*>(by))(command); }, &later,
         [](void const* by) -> std::function<void(Command&)> { return (*static_cast<decltype(later)*>(by))(); }});
  }
  /// The same, without its types.
  struct Given {
    void const* now;
    void (*give)(void const* now, Command& command);
    void const* later;
    std::function<void(Command&)> (*keep)(void const* later);
  };
  unimem::Event submit_either(char const* call, Load load, Given given);
  void check_alive(char const* call) const;
  /// The context is current. Nobody captures a stream that only we know.
  void check_not_captured(char const* call) const;
  /// From here on others may know the stream. What is held back goes into it, behind words of host memory.
  void share() const;
  static void fill_by_doubling(Target const& target, Command& command, DevicePointer to, std::size_t bytes,
                               std::span<const std::byte> pattern);
  /// Copies pieces, either side by its base.
  unimem::Event move_pieces(Moves moves, DevicePointer to, DevicePointer from, std::span<const CopyPiece> pieces,
                            SharedMeter meter);
  static void copy_each(Target const& target, Command& command, Moves moves, DevicePointer to, DevicePointer from,
                        std::span<const CopyPiece> pieces);
  static void copy_one(Target const& target, Moves moves, DevicePointer to, DevicePointer from, std::size_t bytes);
  /// In batches of a size that drivers are known to bear. Where only some were given to the driver, the command fails.
  static void copy_batches(Target const& target, Command& command, DevicePointer to, DevicePointer from,
                           std::span<const CopyPiece> pieces);
  static void copy_rectangle(Target const& target, Moves moves, DevicePointer to, DevicePointer from,
                             PieceGrid const& grid);
  /// The address by which kernels reach pinned memory of the host, less the offset of the first byte of these pieces in
  /// it: for write-combined memory it is not the host's. Nothing where that is not one memory for all of them.
  [[nodiscard]] std::optional<DevicePointer> seen_by_kernels(DevicePointer host, std::span<const CopyPiece> pieces,
                                                             std::size_t CopyPiece::* offset) const;
  /// Whether the driver knows the host memory as pinned.
  [[nodiscard]] bool is_pinned(DevicePointer host) const;
  /// Lets the stream wait for an event by a word of host memory. Under `submission()`, with the context current.
  void wait_by_word(unimem::Event event) const;
  /// The driver reads pageable memory in the call that hands it the copy, whatever the stream waits for: what is to
  /// write there first is waited for before, be it needed or only ordered. By the caller, where nothing is held back.
  void wait_to_read(void const* from, std::span<const unimem::Event> needs);

  CudaDevice& device_;
  Driver const& driver_;
  std::shared_ptr<CommandStream> stream_;
};

}  // namespace unimem::detail::cuda
