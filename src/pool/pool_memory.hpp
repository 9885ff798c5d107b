#pragma once

#include <unimem/pool/memory_pool.hpp>

#include "pool/block.hpp"
#include "pool/extents.hpp"
#include "pool/object_source.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace unimem::detail {

/// Where the memory of a pool's blocks comes from and goes to: parts of pages (Extents) where its device maps them,
/// else an object of its own for each block, of the device or of an upstream.
///
/// Thread-safe. May call the driver, unless it says otherwise: not to be called under the pool's lock then.
class PoolMemory {
 public:
  /// What a new block is made of.
  enum class From : std::uint8_t {
    free,    ///< free memory of the extents
    better,  ///< the same, where it is a better place than another block's
    fresh,   ///< anything, taken from the device where nothing free serves
  };
  struct Wish {
    From from = From::fresh;
    std::size_t bytes = 0;         ///< asked for
    std::size_t capacity = 0;      ///< of the block
    std::size_t peak = 0;          ///< fresh: the most that users ever had at once, this block included
    Origin const* than = nullptr;  ///< better: the other block's place
  };

  /// Throws UnsupportedOperation for pages that were asked for where there are none. `share` null: of no shared limit;
  /// else it outlives this.
  PoolMemory(Device& device, Location location, PoolOptions const& options, LimitShare* share);

  [[nodiscard]] Device& device() const noexcept { return device_; }
  [[nodiscard]] Location location() const noexcept { return location_; }
  /// Both in words.
  [[nodiscard]] std::string where() const;

  /// Null: every block is an object.
  [[nodiscard]] Extents* extents() const noexcept { return extents_.get(); }
  /// Whether a place in it has an address that says how it is aligned.
  [[nodiscard]] bool has_addresses() const noexcept;
  [[nodiscard]] bool has_upstream() const noexcept { return objects_.has_upstream(); }

  /// What a new block for `bytes` takes up, but for the rest of the last page of a large one. Calls no driver.
  [[nodiscard]] std::size_t capacity_for(std::size_t bytes) const noexcept;
  /// The largest cached block that serves a request. Calls no driver.
  [[nodiscard]] std::size_t largest_block_for(std::size_t bytes) const noexcept;

  /// An empty piece if nothing free serves and nothing fresh was wished for. Throws what Extents and ObjectSource
  /// throw.
  [[nodiscard]] Extents::Piece take(Wish const& wish) const;

  /// Takes the memory of these blocks back, whose work has ended.
  void give(BlockList& blocks) const noexcept;

  /// Under AddressSanitizer, makes a cached block's host memory an error to touch, and back. Calls no driver.
  void hide(Block const& block) const noexcept;
  void expose(Block const& block) const noexcept;

 private:
  [[nodiscard]] bool host_memory() const noexcept;

  Device& device_;
  Location const location_;
  std::unique_ptr<Extents> const extents_;
  ObjectSource const objects_;
};

}  // namespace unimem::detail
