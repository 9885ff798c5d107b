#pragma once

#include <cstddef>
#include <vector>

namespace unimem {
class MemoryManager;
}

namespace unimem::detail {

/// How much device memory the operands of one operation need of each manager: known before the first of them gets any.
class MemoryDemand {
 public:
  /// One operand has yet to take `outstanding` bytes, and needs `together` with what it has.
  void add(MemoryManager const& of, std::size_t outstanding, std::size_t together);
  void clear() noexcept { managers_.clear(); }
  void took(MemoryManager const& of, std::size_t bytes) noexcept;

  /// What all operands have yet to take, and what they need with what they have; 0 where nothing was added.
  [[nodiscard]] std::size_t outstanding(MemoryManager const& of) const noexcept { return part(of).outstanding; }
  [[nodiscard]] std::size_t together(MemoryManager const& of) const noexcept { return part(of).together; }

 private:
  struct Part {
    MemoryManager const* of;
    std::size_t outstanding, together;
  };

  [[nodiscard]] Part part(MemoryManager const& of) const noexcept;

  std::vector<Part> managers_;
};

}  // namespace unimem::detail
