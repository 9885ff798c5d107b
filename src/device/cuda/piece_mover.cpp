#include "device/cuda/piece_mover.hpp"

#include <unimem/core/error.hpp>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/cuda_program.hpp"
#include "device/cuda/launch_shape.hpp"
#include "device/cuda/piece_kernel.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>

namespace unimem::detail::cuda {
namespace {

KernelArgument address_argument(DevicePointer address, bool writes) {
  KernelArgument argument;
  argument.memory = {static_cast<std::uintptr_t>(address), 0, 1};
  argument.writes = writes;
  return argument;
}

}  // namespace

PieceWay way_of_pieces(PieceLoad const& load) noexcept {
  constexpr std::size_t many = 64, small = std::size_t{28} << 10, wide = 512;
  using By = PieceWay::By;
  auto const each = load.bytes / load.count;
  if (load.rectangle && (load.pageable || each >= wide)) return {By::rectangle, By::rectangle};
  if (load.pageable) return {};  // the driver stages such copies itself, in the call
  auto const copies = load.driver_batches ? By::batch : load.rectangle ? By::rectangle : By::single_copies;
  bool const crowd = load.count >= many && each < small;
  bool const writes_to_host = load.moves == Moves::download;
  bool const kernel = crowd && !(writes_to_host && load.driver_batches);
  return {kernel ? By::kernel : copies, copies};
}

/// What a launch leaves in a command's keeping.
struct PieceMover::Kept {
  std::shared_ptr<CudaProgram const> kernel;
  std::vector<Tables::Taken> tables;
};

std::shared_ptr<CudaProgram const> PieceMover::kernel(CudaDevice& device) {
  std::lock_guard const lock{kernel_mutex_};
  if (std::exchange(sought_, true)) return kernel_;
  if (!device.reaches_pinned_memory()) return nullptr;
  try {
    ProgramSource source;
    source.name = "unimem_move_pieces";
    source.source = piece_kernel;
    kernel_ = std::dynamic_pointer_cast<CudaProgram const>(device.compile(source));
  } catch (UnsupportedOperation const&) {  // no compiler, for as long as the process lives
    kernel_ = nullptr;
  } catch (KernelError const&) {  // nor one that serves
    kernel_ = nullptr;
  } catch (Error const&) {
    sought_ = false;  // the driver refused for now
  }
  return kernel_;
}

void PieceMover::launch(Command& command, Stream stream, std::shared_ptr<CudaProgram const> kernel, DevicePointer to,
                        DevicePointer from, std::span<const CopyPiece> pieces) {
  auto const kept = std::make_shared<Kept>();
  kept->kernel = std::move(kernel);
  command.keep(kept);
  std::size_t count = 0;
  bool begun = false;
  auto const send = [&] {
    auto const& table = kept->tables.back();
    KernelArgument parts;
    parts.kind = KernelArgument::Kind::scalar;
    parts.scalar_bytes = sizeof(std::uint64_t);
    auto const number = std::uint64_t{count};
    std::copy_n(reinterpret_cast<std::byte const*>(&number), sizeof number, parts.scalar.begin());
    std::array const arguments{address_argument(reinterpret_cast<DevicePointer>(table.get()), false), parts,
                               address_argument(to, true), address_argument(from, false)};
    kept->kernel->launch(stream, Range{count * warp}, arguments);
    begun = true;
    count = 0;
  };
  try {
    for (auto const& piece : pieces) {
      for (std::size_t done = 0; done < piece.bytes;) {
        if (count == parts_in_a_table) send();
        if (count == 0) kept->tables.push_back(tables_.take());
        auto const bytes = std::min(piece.bytes - done, largest_part);
        kept->tables.back().get()[count++] = {piece.to + done, piece.from + done, bytes};
        done += bytes;
      }
    }
    if (count > 0) send();
  } catch (DeviceError const& error) {
    health_.note(static_cast<Result>(error.code));
    if (!begun) throw;
    command.fail(std::current_exception());  // some of it is on its way
  } catch (...) {
    if (!begun) throw;
    command.fail(std::current_exception());
  }
}

}  // namespace unimem::detail::cuda
