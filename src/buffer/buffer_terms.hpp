#pragma once

#include <unimem/buffer/options.hpp>
#include <unimem/core/name.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace unimem {
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

class Replica;
class SpillFiles;

/// What a buffer was made with, and what it is called.
struct BufferTerms {
  explicit BufferTerms(BufferOptions&& given);

  /// For messages.
  [[nodiscard]] std::string display_name() const;
  /// How its blocks are asked for.
  [[nodiscard]] AcquireOptions named() const;
  /// Puts memory of its on the usage book of the manager. Throws std::bad_alloc.
  void count_in(Replica& replica) const;

  BufferOptions options;
  std::shared_ptr<MemoryManager> manager;  ///< goes after all memory that came from it
  SpillFiles* spill_files;                 ///< of the manager; null: host memory stays where it is
  Name name;
  Name key;  ///< what its use is known by: its name, or where it was made
  std::uint64_t id;
};

}  // namespace unimem::detail
