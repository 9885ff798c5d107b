#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "manager/access_context.hpp"

#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

namespace unimem {
class MemoryManager;
class Resident;
}  // namespace unimem

namespace unimem::detail {

/// The operands of an operation that makes room with none of them locked: meanwhile they give no memory, so that they
/// do not push each other out.
class OperandsInUse {
 public:
  /// Nothing of the operand is given, whatever parts it has.
  static constexpr ByteRange all_of_it{0, std::numeric_limits<std::size_t>::max()};
  /// Beside parts: memory that is more than one of them may go, after all others'.
  static constexpr ByteRange no_more{std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max()};

  OperandsInUse() = default;
  OperandsInUse(OperandsInUse const&) = delete;
  OperandsInUse& operator=(OperandsInUse const&) = delete;
  ~OperandsInUse() { end(); }

  /// That part of one, which may be added again.
  void add(MemoryManager& manager, Resident& operand, ByteRange part = all_of_it);
  void end() noexcept;

 private:
  struct Use {
    MemoryManager* manager = nullptr;
    Resident* operand = nullptr;
    ByteRange part{};

    friend bool operator==(Use const&, Use const&) = default;
  };
  std::vector<Use> operands_;
};

/// What adds these buffers to the operands in use.
template <class... Buffers>
[[nodiscard]] auto operands(Buffers&... buffers) {
  return [... each = &buffers](OperandsInUse& in_use) { (in_use.add(each->manager(), *each), ...); };
}

using Operation = std::function<bool(AccessContext&)>;
using ListOperands = std::function<void(OperandsInUse&)>;

/// What `run_admitted` does with an operation that was not through.
void run_again(AccessContext& context, ListOperands const& operands, Operation const& work);

/// Runs `work(context)`, an operation that may take memory or come behind work, and returns whether it is through. If
/// it is not, it has changed nothing that is not so for others, too, and holds no lock; it is run again when that work
/// has ended, when room has been made for it, or in its turn, when others have moved on. `operands(in_use)` adds those
/// that may be asked for memory.
template <class Operands, class Work>
void run_admitted(AccessContext& context, Operands const& operands, Work const& work) {
  if (!work(context)) run_again(context, std::ref(operands), std::ref(work));
}

template <class Operands, class Work>
void run_admitted(Operands const& operands, Work const& work) {
  AccessContext context;
  run_admitted(context, operands, work);
}

}  // namespace unimem::detail
