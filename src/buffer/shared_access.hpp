#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/shared_memory.hpp"

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace unimem::detail {

class AccessContext;
class Replica;

/// What an operation on a buffer is to other processes that share it: nothing at all, where none does.
///
/// Another process's writes are writes of the host that are found out by looking, before every operation. For the
/// holder of the buffer's lock.
class SharedAccess {
 public:
  using Access = SharedMemory::Access;

  explicit SharedAccess(BufferParts& parts) noexcept : parts_(&parts) {}

  /// An operation on `range` is about to look what is there: no other process writes there until `turn` ends, nor, if
  /// it is to write, reads. False, with nothing changed, where another one is at it: the context says for what to wait.
  /// UnsupportedOperation to write in a forked child.
  [[nodiscard]] bool begin(AccessContext& context, ByteRange range, Access access, HeldTurn& turn) const {
    return parts_->shared == nullptr || begin_turn(context, range, access, turn);
  }
  /// What other processes have written since goes on record, and what was lost with one of them.
  void note_others() const {
    if (parts_->shared != nullptr && parts_->shared->changed()) note_changes();
  }
  /// UnsupportedOperation where processes share the memory, which `why` forbids the operation.
  void refuse(std::string_view operation, std::string_view why = stays) const {
    if (parts_->shared != nullptr) [[unlikely]]
      throw_refused(operation, why);
  }
  static constexpr std::string_view stays =
      "other processes share its memory, which stays as it is until the last of them is done";
  static constexpr std::string_view has_no_end =
      "other processes share its memory, and what is written through an address has no end at which they would see it: "
      "map it, or copy to it";
  static constexpr std::string_view has_no_turns =
      "other processes share its memory, and a graph that is launched later takes no turns with them";

 private:
  [[nodiscard]] bool begin_turn(AccessContext& context, ByteRange range, Access access, HeldTurn& turn) const;
  void note_changes() const;
  [[noreturn]] void throw_refused(std::string_view operation, std::string_view why) const;

  BufferParts* parts_;
};

/// The turn of an operand of device work.
struct OperandTurn {
  HeldTurn turn;
  BufferParts* parts = nullptr;
  std::size_t operand = 0;
  Event end{};  ///< of what the turn is for
};
using OperandTurns = std::vector<OperandTurn>;

/// The replica, for a lease on it: with the lease ends the turn.
[[nodiscard]] std::shared_ptr<Replica> with_turn(std::shared_ptr<Replica> replica, HeldTurn turn);

/// The turn ends when `event` does, well or badly. Where there is no memory or no thread for that it throws, and the
/// turn is the caller's as before.
void end_turn_after(HeldTurn const& turn, Event event);

/// A write on a device ends with `event`: what it leaves goes to the memory that is shared, and then the turn ends.
/// Without waiting, but where there is no memory or no thread for that; the end of the process waits for it. What goes
/// wrong the next access to the buffer tells, and other processes find the bytes lost. Not under the buffer's lock.
void publish_after(HeldTurn const& turn, BufferParts& parts, Event event) noexcept;

/// Either, for the turns of work that is on its way. They are the caller's, too, until it lets go of them.
void end_turns(OperandTurns const& turns) noexcept;

/// The same when the lease ends that this is for.
[[nodiscard]] std::shared_ptr<Replica> publishing_at_end(std::shared_ptr<Replica> replica, HeldTurn turn,
                                                         BufferParts& parts);

}  // namespace unimem::detail
