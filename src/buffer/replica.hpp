#pragma once

#include "buffer/advice_book.hpp"
#include "buffer/holds.hpp"
#include "buffer/replica_memory.hpp"
#include "buffer/work_log.hpp"
#include "manager/usage_book.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace unimem::detail {

/// What a buffer has at one place, or at several that share it: memory, the log of the work that may still touch it,
/// what holds it there, and the advice that its device has been told.
///
/// Shared by the buffer, by leases and by mappings: the memory returns to its pool when the last of them lets go and
/// the last work has ended. The buffer's lock guards everything but the leases.
class Replica : public ReplicaMemory {
 public:
  explicit Replica(ReplicaMemory memory) : ReplicaMemory(std::move(memory)) {}
  Replica(Replica const&) = delete;
  Replica& operator=(Replica const&) = delete;

  /// Hands the memory back with the ticket of its last work, without waiting for it. Memory that was only borrowed is
  /// its owner's again when this returns, so its work is waited for; but not in the middle of work, which may be the
  /// one: then the deleter is called when the work has ended, on a thread of the library's.
  ~Replica();

  [[nodiscard]] WorkLog& work() noexcept { return work_; }
  [[nodiscard]] WorkLog const& work() const noexcept { return work_; }
  [[nodiscard]] Holds& holds() noexcept { return holds_; }
  [[nodiscard]] Holds const& holds() const noexcept { return holds_; }

  /// Tells the device which advice holds for the memory, as far as it has not been told: a hint, until the memory goes.
  void apply_advice(AdviceBook const& advice) {
    bool const nothing = advice.empty() && told_.empty();
    if (!nothing && !in_file()) apply_advice_slow(advice);
  }

  /// Puts it on the usage book, until it goes: under the name of its buffer, which `made_by` has made (see
  /// BufferOptions). Throws std::bad_alloc.
  void count_in(UsageBook& book, Name name, std::uint64_t buffer, std::vector<std::uintptr_t> const* made_by) {
    book.enter(usage_, {&device(), location(), name}, memory().bytes, buffer, made_by);
  }
  /// Where uses and copies are noted, with the buffer's lock held.
  [[nodiscard]] UsageEntry& usage() noexcept { return usage_; }

  /// A lease on that part of it begins, or ends.
  void add_lease(DeviceMemory part) noexcept {
    if (auto* const in_parts = reserved()) in_parts->hold(range_of(part));
    holds_.add_lease();
  }
  void end_lease(DeviceMemory part) noexcept {
    holds_.end_lease();
    if (auto* const in_parts = reserved()) in_parts->release(range_of(part));
  }
  /// The host has been given the address of that part, which it may keep, and write through if it is `for_writing`.
  void mark_exported(ByteRange part, bool for_writing) noexcept;

  /// Whether it may be evicted to a file, if no address of it was given away: it is not to be wiped out either.
  [[nodiscard]] bool may_be_spilled() const noexcept { return !zero_at_end_ && ReplicaMemory::may_be_spilled(); }
  /// Copies bytes of the host's memory, or of a file, from `offset` on to memory of `target`'s size. Throws IoError.
  void read_into(std::span<std::byte> target, std::size_t offset);

  /// Overwrites all of it with zeros, behind the work that is pending. Throws what the device's default queue throws.
  void zero();
  /// Has that done when the last share in it has gone, if it is a pool's.
  void zero_at_end() noexcept { zero_at_end_ = true; }

  /// Another owner's from now on, who is ordered behind the work that is pending here, and needs nothing of what it
  /// does.
  void hand_over();
  /// Whether work looks at it that saving what is here does not wait for: it writes nothing.
  [[nodiscard]] bool is_read_by_work() const noexcept {
    return holds_.has_running_work() && work_.writes_ended_well(whole());
  }

 private:
  /// The bytes of the buffer in a part of the host's memory.
  [[nodiscard]] ByteRange range_of(DeviceMemory part) const noexcept {
    auto const begin = part.object + part.offset - reinterpret_cast<std::uintptr_t>(host_address());
    return {begin, begin + part.bytes};
  }
  void apply_advice_slow(AdviceBook const& advice);
  void zero_before_the_end() noexcept;
  [[nodiscard]] Event last_work() noexcept;

  Holds holds_;
  WorkLog work_{holds_};
  AdviceBook told_;  ///< what the device has been told
  UsageEntry usage_;
  bool zero_at_end_ = false;
};

}  // namespace unimem::detail
