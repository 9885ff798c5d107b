#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "manager/access_context.hpp"

#include <vector>

namespace unimem::detail {

struct MappedWrite;

/// What comes before every operation on a buffer: what was written to the host's memory behind the library's back goes
/// on record, and what failed is taken back and told.
///
/// For the holder of the buffer's lock.
class Reconciler {
 public:
  using Evicts = AccessContext::Evicts;

  explicit Reconciler(BufferParts& parts) noexcept : parts_(&parts) {}

  /// Looks at the work in flight on `range`, or waits for it. What has failed is rolled back, and its error thrown.
  /// First of all, what users wrote behind the library's back is recorded; CoherenceConflict if it has run into a
  /// device's, unless the caller is about to `decide` which of the two counts.
  void resolve(ByteRange range, bool wait, bool decide = false, Evicts evicts = Evicts::no) const;
  /// The same for a caller that waits without the lock: false, with nothing changed, where the context says for what.
  [[nodiscard]] bool resolve_or_wait(AccessContext& context, ByteRange range, bool decide = false,
                                     Commits::Tells tells = Commits::Tells::yes) const;
  /// The same for a caller that only looks at the work in flight: it waits where some of it has failed, for the rest.
  [[nodiscard]] bool look_or_wait(AccessContext& context, ByteRange range, bool decide = false) const {
    return parts_->is_settled() || look_or_wait_at_pending(context, range, decide);
  }
  /// Likewise on behalf of another thread than the one that asked for the work. Failures are the owner's to hear of:
  /// they wait for its next access.
  [[nodiscard]] bool resolve_quietly(AccessContext& context, ByteRange range) const;
  /// What was written through mappings comes last. Without `wait`, what a device that shares the memory is still
  /// writing is left for later.
  void collect_host_writes(bool decide, bool wait = true, Evicts evicts = Evicts::no) const;
  /// What was written to the host's memory is recorded now, or by the next operation where there is no memory for it.
  void try_to_record_writes() const;
  /// Whether what was written through mappings can go on record without waiting for the work it comes behind. If not,
  /// the context says for what to wait.
  [[nodiscard]] bool may_record(AccessContext& context) const;

 private:
  [[nodiscard]] bool look_or_wait_at_pending(AccessContext& context, ByteRange range, bool decide) const;
  /// As `resolve`; with `unfinished`, what is pending beside failed work is not waited for, but added there.
  void resolve_but(ByteRange range, bool wait, bool decide, Evicts evicts, std::vector<Event>* unfinished,
                   Commits::Tells tells) const;
  /// The same for a caller that may wait without the lock, given what it has found to wait for before.
  [[nodiscard]] bool resolve_behind(AccessContext& context, std::vector<Event> work, ByteRange range, bool wait,
                                    bool decide, Commits::Tells tells) const;
  /// Adds the work that what was written through mappings comes behind.
  void add_unfinished_before_records(std::vector<Event>& work) const;
  /// Puts on record what was written through mappings; what goes wrong, the next access raises. Throws std::bad_alloc,
  /// and what giving the host memory throws, with what is left to do still to be done.
  void record_mapped_writes(Evicts evicts) const;
  void record_mapped_write(MappedWrite const& write, Evicts evicts) const;

  BufferParts* parts_;
};

}  // namespace unimem::detail
