#pragma once

#include "buffer/shared_memory.hpp"
#include "core/unique_fd.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>

namespace unimem {
class BufferCore;
}

namespace unimem::detail {

/// Which buffer of this process stands on which memory that processes share. There is one for each, by whatever id or
/// registry it is opened: what threads of a process do to it is ordered as on any buffer, and their turns, which
/// are one holder's, need not stand in one another's way.
///
/// Thread-safe.
class SharedBuffers {
 public:
  [[nodiscard]] static SharedBuffers& of_this_process();

  /// The one that stands on what was handed over, if it is of that size; null: none of this process's does.
  [[nodiscard]] std::shared_ptr<BufferCore> find(std::span<UniqueFd const> descriptors, std::size_t bytes);
  /// It stands on such memory from now on. Returns it, or the one that does already: another thread was faster.
  [[nodiscard]] std::shared_ptr<BufferCore> keep(std::shared_ptr<BufferCore> const& core);

 private:
  [[nodiscard]] static bool stands_on(BufferCore const& core, SharedMemory::Identity const& identity);

  std::mutex mutex_;
  std::map<SharedMemory::Identity, std::weak_ptr<BufferCore>> buffers_;
};

}  // namespace unimem::detail
