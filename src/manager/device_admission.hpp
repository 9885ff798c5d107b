#pragma once

#include <unimem/core/error.hpp>
#include <unimem/pool/allocation.hpp>

#include "manager/allocation_request.hpp"
#include "manager/manager_state.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace unimem::detail {

/// One operation's request for memory of a device: how a manager comes by memory when there is none.
///
/// The rungs are tried from what disturbs nothing to what costs most: free memory, what other pools have only cached,
/// moving blocks together within the device, and residents that give theirs back. Past the first the operands are
/// released, if the operation can release them; only the thread that has the turn to make room climbs past the second.
class DeviceAdmission {
 public:
  DeviceAdmission(MemoryManager::State& state, AccessContext& context, Device& device, Location location,
                  std::size_t bytes, AcquireOptions const& options);

  /// The memory. Nothing: the context says what is to come before another try. Throws OutOfMemory.
  [[nodiscard]] std::optional<Allocation> run();
  /// The same when free memory was refused, or, without a refusal, would have to be waited for.
  [[nodiscard]] std::optional<Allocation> make_room(std::optional<OutOfMemory::Facts> refusal);

 private:
  /// Whether another thread has the turn, and first choice: others may have what there is besides.
  [[nodiscard]] bool others_come_first() const;
  /// Free memory, waiting for the work it is behind. Throws OutOfMemory where no eviction would help.
  [[nodiscard]] bool granted_from_free_memory();
  /// Nothing: the context says that room is to be made with the operands released.
  [[nodiscard]] std::optional<Allocation> needs_room(std::optional<OutOfMemory::Facts> refusal);
  /// Whether the operands need more together than the device has just now.
  [[nodiscard]] bool operands_exceed_device() const;
  /// Whether it holds them all at once when its pool has asked for that: it may have grown.
  [[nodiscard]] bool operands_fit_together();
  /// Memory of this device that other pools have cached goes back to it.
  [[nodiscard]] bool granted_from_other_caches();
  /// Blocks in use are moved together: many times faster than over the device's link and back.
  [[nodiscard]] bool granted_by_defragmenting();
  /// Residents give their memory back, the best first, as long as that may help.
  [[nodiscard]] bool granted_by_evicting();
  /// One look at the residents, and at what other operations hold; whether evicting may help.
  [[nodiscard]] bool survey();
  /// What was given may have come later than it was said, and other operations may have taken some meanwhile.
  [[nodiscard]] bool granted_late();

  /// What is granted from now on is the operation's.
  void count_as_taken() noexcept;
  /// Whether to wait for others may help, and is allowed.
  [[nodiscard]] bool may_wait() const noexcept { return context_.waits() && !context_.insists(); }
  [[nodiscard]] std::optional<Allocation> must_wait() noexcept;
  [[noreturn]] void refuse();

  MemoryManager::State& state_;
  AccessContext& context_;
  Device& device_;
  DeviceRecord& record_;
  std::size_t const bytes_;       ///< asked for
  std::size_t const together_;    ///< what all operands of the operation need
  std::uint64_t const removals_;  ///< of residents, before
  AllocationRequest request_;
  Residents::Survey survey_;
  std::string failure_;            ///< why a resident could not be saved; empty if none failed
  bool others_may_give_ = false;   ///< operations in progress may yet release what helps
  bool given_ = false;             ///< residents have given some
  std::uint64_t taken_times_ = 0;  ///< what other operations had taken when the last survey began
  std::size_t taken_bytes_ = 0;
};

}  // namespace unimem::detail
