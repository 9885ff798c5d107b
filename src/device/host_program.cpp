#include <unimem/core/error.hpp>

#include "device/cpu/thread_pool.hpp"
#include "device/host_program.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unimem::detail {
namespace {

/// Below this much memory a loop is done before another thread is awake.
constexpr std::size_t parallel_from_bytes = std::size_t{1} << 20;

/// More pieces than threads, so that a slow piece is made up for by the others.
constexpr std::size_t pieces_per_thread = 8;

/// Pieces of long loops begin at multiples of this many items, so that two threads seldom write to one cache line.
constexpr std::size_t piece_granule = 64;

HostArgument host_argument(KernelArgument const& argument, std::span<std::byte> scalar) {
  if (argument.kind == KernelArgument::Kind::scalar) {
    std::copy_n(argument.scalar.begin(), scalar.size(), scalar.begin());
    return {scalar.data(), argument.scalar_bytes};
  }
  return {reinterpret_cast<void*>(argument.memory.object + argument.memory.offset), argument.memory.bytes};
}

}  // namespace

HostProgram::HostProgram(ProgramSource const& source, Device const& device)
    : name_(source.name), loop_(source.host), takes_groups_(source.host_takes_groups) {
  if (!loop_) throw KernelError(name_, fmt::format("it has no host form, and {} runs no other", device.id()));
}

void HostProgram::check_range(Range range) const {
  if (takes_groups_ && !range.has_group()) {
    throw KernelError(name_,
                      "its host form takes a WorkGroup, and no size of the groups is given: Range{…}.group({…}), "
                      "or Kernel::group");
  }
}

void HostProgram::run(Range range, std::span<const KernelArgument> arguments) const {
  std::size_t bytes = 0;
  // Copies of the scalars, since a loop is handed addresses and may write to them.
  std::vector<decltype(KernelArgument::scalar)> scalars(arguments.size());
  std::vector<HostArgument> host(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    host[i] = host_argument(arguments[i], scalars[i]);
    if (arguments[i].kind == KernelArgument::Kind::memory) bytes += host[i].bytes;
  }

  check_range(range);
  // Items, or groups.
  auto const items = takes_groups_ ? range.groups().items() : range.items();
  auto& pool = ThreadPool::shared();
  if (bytes < parallel_from_bytes || items == 1 || pool.threads() == 1) {
    loop_(range, 0, items, host);
    return;
  }
  auto const wanted = std::min(items, pool.threads() * pieces_per_thread);
  auto length = (items - 1) / wanted + 1;
  if (!takes_groups_ && length > piece_granule) length = (length + piece_granule - 1) / piece_granule * piece_granule;
  pool.parallel_for((items - 1) / length + 1, [&](std::size_t piece) {
    auto const begin = piece * length;
    loop_(range, begin, std::min(items, begin + length), host);
  });
}

std::shared_ptr<HostProgram const> as_host_program(std::shared_ptr<Program const> const& program,
                                                   Device const& device) {
  if (auto host = std::dynamic_pointer_cast<HostProgram const>(program)) return host;
  throw KernelError("(unknown)", fmt::format("it was not made ready for {}", device.id()));
}

}  // namespace unimem::detail
