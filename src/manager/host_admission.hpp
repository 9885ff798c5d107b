#pragma once

#include <unimem/core/error.hpp>
#include <unimem/pool/allocation.hpp>

#include "manager/allocation_request.hpp"
#include "manager/manager_state.hpp"

#include <cstddef>
#include <optional>
#include <string>

namespace unimem::detail {

/// One request for host memory that its pool has refused, or has only behind work: how a manager comes by some all the
/// same.
///
/// Without turns, and without waiting for long: some host memory is taken with a buffer's lock held, which those that
/// would be waited for may be waiting for in turn.
class HostAdmission {
 public:
  HostAdmission(MemoryManager::State& state, AccessContext& context, MemoryPool& from, std::size_t bytes,
                AcquireOptions const& options, std::optional<OutOfMemory::Facts> refusal);

  /// The memory. Nothing: it is to be made, or waited for, with the operands released. Throws OutOfMemory.
  [[nodiscard]] std::optional<Allocation> run();

 private:
  /// Host memory is where residents save to: it is asked back only if they may save to files.
  [[nodiscard]] bool may_evict() const;
  /// Residents give their memory back, the best first. Those that others work with just now are waited for.
  [[nodiscard]] bool granted_by_evicting();
  /// Has residents of a survey give memory until that does.
  enum class Given : unsigned char { nothing, in_use, some, enough };
  [[nodiscard]] Given evict(Residents::Survey const& survey);
  [[nodiscard]] Residents::Survey survey() const;

  MemoryManager::State& state_;
  AccessContext& context_;
  bool const refused_;  ///< not only behind work
  AllocationRequest request_;
  std::string failure_;  ///< why a resident could not be saved; empty if none failed
};

}  // namespace unimem::detail
