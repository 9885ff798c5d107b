#pragma once

#include <unimem/pool/memory_pool.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace unimem::detail {

/// Small blocks that are given back by their addresses, many to a page: a block of the pool that is cut into equal
/// cells. What is asked for takes its bytes rounded up to sixteen, and two bytes that say what it was, in place of a
/// descriptor and an entry of its own.
///
/// A class for each multiple of sixteen bytes, with a lock of its own. A page goes back to the pool when nothing on it
/// is in use; a block that was on it, given back again, is as unknown then as any. Few blocks of a class are better off
/// alone: one that comes and goes would take a page each time.
///
/// Thread-safe. The pool must outlive it.
class SmallBlocks {
 public:
  static constexpr std::size_t largest = 256;
  static constexpr std::size_t page_bytes = 4096;

  struct Live {
    std::size_t blocks = 0, bytes = 0;
  };

  SmallBlocks(MemoryPool& pool, Name name);

  [[nodiscard]] bool serves(std::size_t bytes, std::size_t alignment) const noexcept;

  /// Whether the next block is to be one of the pool's own, as there are few of that size; it is counted as such until
  /// `give` is asked for a block that it does not know.
  [[nodiscard]] bool goes_alone(std::size_t bytes, std::size_t alignment) noexcept;
  /// It was not, for want of memory.
  void was_not_taken(std::size_t bytes, std::size_t alignment) noexcept;

  /// An address of its own, also for 0 bytes; null where the pool has no room for a page. Throws std::bad_alloc, where
  /// there is no memory for the page's books. `serves(bytes, alignment)`.
  [[nodiscard]] void* take(std::size_t bytes, std::size_t alignment);

  /// What became of an address that came back.
  enum class Return : std::uint8_t { taken, unknown, twice, other_size, other_alignment };
  /// `unknown`: nothing of such a size and alignment begins there. `serves(bytes, alignment)`.
  [[nodiscard]] Return give(std::uintptr_t address, std::size_t bytes, std::size_t alignment) noexcept;
  /// Why an address cannot be given back so, whatever class it is of. `unknown`: it is no small block.
  [[nodiscard]] Return judge(std::uintptr_t address, std::size_t bytes) const noexcept;

  [[nodiscard]] Live live() const;
  /// Throws std::logic_error unless the books are in order. A walk; for tests.
  void validate() const;

 private:
  static constexpr std::size_t step = 16;
  static constexpr std::size_t nowhere = SIZE_MAX;
  static constexpr unsigned few = 4;

  /// What a cell was last handed out as.
  struct Note {
    std::uint16_t bytes : 9 = 0;
    std::uint16_t alignment : 4 = 0;  ///< its logarithm
    bool used : 1 = false;            ///< ever
    bool live : 1 = false;
  };
  static_assert(sizeof(Note) == 2);

  struct Page {
    Allocation block{};
    std::vector<Note> notes{};                                 ///< by cell
    std::array<std::uint64_t, page_bytes / step / 64> free{};  ///< a bit for each cell
    std::size_t live = 0;                                      ///< cells
    std::size_t among_roomy = nowhere;                         ///< where in `roomy` it stands
  };
  struct Place {
    std::uintptr_t begin;
    std::unique_ptr<Page> page;
  };
  struct Found {
    Page* page = nullptr;
    std::size_t cell = 0;
  };

  struct alignas(64) Class {
    mutable std::mutex mutex{};
    std::size_t cell = 0;            ///< bytes
    std::vector<Place> pages{};      ///< by address
    std::vector<Page*> roomy{};      ///< those with free cells; room for all
    std::unique_ptr<Page> spare{};   ///< the books of a page that went back, all free
    std::atomic<bool> paged{false};  ///< there are pages
    std::atomic<unsigned> alone{0};  ///< blocks, about: threads that meet may miscount
    std::size_t live_bytes = 0;      ///< as asked for
    std::size_t live_blocks = 0;

    /// The cell that begins at an address.
    [[nodiscard]] Found find(std::uintptr_t address) const noexcept;
    [[nodiscard]] std::unique_ptr<Page> new_page() const;
    /// Throws std::bad_alloc, with nothing changed.
    void add(std::unique_ptr<Page>& page);
    /// Takes an empty page out, whose block is to be given back without the lock.
    [[nodiscard]] Allocation remove(std::uintptr_t begin) noexcept;
    Return one_less_alone() noexcept;
    void set_roomy(Page& page) noexcept;
    void set_full(Page& page) noexcept;
    void validate() const;
  };

  [[nodiscard]] static std::size_t cell_of(std::size_t bytes, std::size_t alignment) noexcept;
  [[nodiscard]] Class& class_of(std::size_t bytes, std::size_t alignment) noexcept;
  [[nodiscard]] static Return judge(Note note, std::size_t bytes) noexcept;

  MemoryPool& pool_;
  Name name_;
  std::size_t most_alignment_;
  std::array<Class, largest / step> classes_;
};

}  // namespace unimem::detail
