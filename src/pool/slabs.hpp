#pragma once

#include "pool/near_exact.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace unimem::detail {

struct Slab;

/// Where slabs come from: spans of an arena, or whole objects of a driver.
class SlabMemory {
 public:
  /// A stretch of memory: an address, or a driver's object, and the provider's own note of what it is.
  struct Stretch {
    std::uintptr_t object = 0;
    std::size_t bytes = 0;
    void* note = nullptr;
  };

  SlabMemory() = default;
  SlabMemory(SlabMemory const&) = delete;
  SlabMemory& operator=(SlabMemory const&) = delete;
  virtual ~SlabMemory() = default;

  /// At least `bytes`; throws what keeps it from providing them.
  [[nodiscard]] virtual Stretch take(std::size_t bytes) = 0;
  virtual void give(Stretch stretch) noexcept = 0;
};

/// A block of a slab. A plain value: the slab's descriptor never moves while one of its blocks is out.
struct SlabBlock {
  Slab* slab = nullptr;
  std::uint32_t number = 0;

  [[nodiscard]] std::uintptr_t object() const noexcept;
  [[nodiscard]] std::size_t offset() const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept;
};

/// Small blocks, cut from slabs that each hold one size.
///
/// A small block must not be a span of its own: its descriptor would outweigh it, and long-lived ones would lie
/// scattered and keep large free memory apart. In a slab a block is a bit, kept apart from the memory (which the host
/// may be unable to reach). Blocks come from the fullest slab that has one, so that the others run empty and can be
/// given back; one empty slab of each class is kept, or a block that comes and goes would take its slab along.
///
/// Not thread-safe; the owner locks.
class Slabs {
 public:
  /// The largest block: above it the slack of a class is felt more than a span's descriptor.
  static constexpr std::size_t largest_block = std::size_t{8} << 10;

  /// Slabs come from `memory`, which outlives them. A pool whose pages cost little need not keep empty ones.
  explicit Slabs(SlabMemory& memory, bool keeps_empty = true) noexcept : memory_(memory), keeps_empty_(keeps_empty) {}
  Slabs(Slabs const&) = delete;
  Slabs& operator=(Slabs const&) = delete;

  /// Gives all slabs back, used or not: by then none may be in use.
  ~Slabs();

  [[nodiscard]] static constexpr bool serves(std::size_t bytes) noexcept { return bytes <= largest_block; }

  /// A block of `block_capacity(bytes)`; the same class of near-exact sizes as everywhere. O(1), but for a new slab.
  /// Throws what the memory throws and std::bad_alloc, changing nothing.
  [[nodiscard]] SlabBlock take(std::size_t bytes);

  /// Whether `take` would need no new slab. And what a new one is asked for, at least.
  [[nodiscard]] bool has(std::size_t bytes) const noexcept;
  [[nodiscard]] static std::size_t slab_bytes(std::size_t bytes) noexcept;

  /// A block as large as one that is to be given back then, in another slab that is at least as full; none (no slab) if
  /// a bounded look finds none. So one slab fills and the other empties, and no sequence of moves goes on for ever.
  [[nodiscard]] SlabBlock take_instead_of(SlabBlock used) noexcept;

  /// O(1). May give an empty slab back to the memory.
  void give(SlabBlock block) noexcept;

  /// Gives the empty slabs back that are kept; returns their bytes.
  std::size_t trim() noexcept;

  /// Bytes of slabs, and of blocks that are out.
  [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  /// Throws std::logic_error unless bits, counts, lists and sums agree. Walks everything.
  void validate() const;

 private:
  static constexpr std::size_t most_blocks = 256;
  /// How many lists of slabs that have a free block a class has: by how full they are.
  static constexpr std::size_t fullness_lists = 8;
  static constexpr std::size_t class_count =
      1 + 16 * static_cast<std::size_t>(std::countr_zero(largest_block / smallest_block));

  friend struct Slab;
  friend struct SlabBlock;

  struct Class {
    std::array<Slab*, fullness_lists> open{};  ///< slabs with free and with used blocks; the last are the fullest
    std::uint32_t occupied = 0;                ///< a bit for each list that is not empty
    Slab* full = nullptr;
    Slab* empty = nullptr;  ///< at most one
  };

  [[nodiscard]] static std::size_t class_of(std::size_t capacity) noexcept;
  [[nodiscard]] static std::size_t list_of(Slab const& slab) noexcept;

  [[nodiscard]] Slab& new_slab(std::size_t capacity);
  /// A block of a slab that is in no list, has one free, and is in the right list afterwards.
  [[nodiscard]] SlabBlock cut(Class& of, Slab& slab) noexcept;
  void give_back(Slab& slab) noexcept;
  void link(Class& of, Slab& slab) noexcept;
  void unlink(Class& of, Slab& slab) noexcept;
  [[nodiscard]] static Slab*& head(Class& of, Slab const& slab) noexcept;

  SlabMemory& memory_;
  bool const keeps_empty_;
  std::array<Class, class_count> classes_{};
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<std::unique_ptr<Slab>> spare_;  ///< descriptors, with room for all: recycling one cannot fail
  std::size_t reserved_ = 0;
  std::size_t used_ = 0;
  std::size_t count_ = 0;
};

/// One stretch cut into equal blocks.
struct Slab {
  SlabMemory::Stretch stretch;
  std::size_t capacity = 0;  ///< of each block
  std::uint32_t blocks = 0;
  std::uint32_t used = 0;
  std::array<std::uint64_t, Slabs::most_blocks / 64> free{};  ///< a bit for each block
  std::size_t place = 0;                                      ///< its index among all slabs
  Slab* before = nullptr;
  Slab* after = nullptr;
};

inline std::uintptr_t SlabBlock::object() const noexcept {
  return slab->stretch.object;
}
inline std::size_t SlabBlock::offset() const noexcept {
  return number * slab->capacity;
}
inline std::size_t SlabBlock::bytes() const noexcept {
  return slab->capacity;
}

}  // namespace unimem::detail
