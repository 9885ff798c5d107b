#include "buffer/reconciler.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/wait_watch.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/shared_access.hpp"
#include "device/page_watch.hpp"
#include "manager/access_context.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace unimem::detail {

void Reconciler::collect_host_writes(bool decide, bool wait, Evicts evicts) const {
  SharedAccess(*parts_).note_others();
  std::optional<HostWriteConflict> conflict;
  if (auto* const writes = parts_->watch.writes()) {
    // With what is pending: when failed work is taken back, these are not.
    auto const record = [this](ByteRange range) {
      ++parts_->operations;
      Commits(*parts_).commit_write(host_place, range, {}, Commits::Events::of_all);
    };
    conflict = writes->collect(parts_->replicas.coherence, record, wait);
    parts_->watch.collected();
    parts_->counters.count_unmarked_writes(writes->take_unmarked());
  }
  record_mapped_writes(evicts);
  if (!conflict || decide) return;
  throw CoherenceConflict(
      parts_->terms.display_name(),
      {parts_->replicas.places.name(conflict->device), conflict->on_device.begin, conflict->on_device.end},
      {fmt::format("host (found by pages of {} bytes)", PageWatch::page_bytes()), conflict->host.begin,
       conflict->host.end});
}

void Reconciler::try_to_record_writes() const {
  try {
    collect_host_writes(true, !is_in_work());  // the middle of work may be what a device's write comes behind
  } catch (std::bad_alloc const&) {            // NOLINT(bugprone-empty-catch)
    // The bytes have been written, and too late to refuse it: the next operation records them first, or is refused.
  }
}

void Reconciler::record_mapped_writes(Evicts evicts) const {
  auto& unrecorded = parts_->watch.unrecorded();
  while (!unrecorded.empty()) {
    ++parts_->operations;
    record_mapped_write(unrecorded.back(), evicts);
    unrecorded.pop_back();
  }
}

void Reconciler::record_mapped_write(MappedWrite const& write, Evicts evicts) const {
  auto const raise_later = [this](std::exception_ptr failure) {
    if (failure && !parts_->deferred) parts_->deferred = std::move(failure);
  };
  AccessContext context{AccessContext::Waiting::never, evicts};  // so that there is memory, or it throws
  auto const mark = [&](ByteRanges const& ranges) {
    auto plan = parts_->replicas.coherence.plan_mark(host_place, ranges, parts_->replicas.places.cost());
    static_cast<void>(BufferAccess(*parts_).mark_there(context, std::move(plan), {}));
  };
  static_cast<void>(ReplicaAllocator(*parts_).ensure_host(context, write.range));
  raise_later(Commits(*parts_).resolve(write.range, true));
  auto rest = write.parts.empty() ? ByteRanges{write.range} : write.parts;
  // The bytes have been written, whatever else went wrong meanwhile: those that no device wrote count.
  while (!rest.empty()) {
    try {
      return mark(rest);
    } catch (CoherenceConflict const& conflict) {
      auto before = rest;
      before.remove({conflict.earlier.begin, parts_->replicas.bytes()});
      if (!before.empty()) mark(before);
      raise_later(std::current_exception());
      rest.remove({0, conflict.earlier.end});
    } catch (std::bad_alloc const&) {
      throw;
    } catch (...) {
      raise_later(std::current_exception());
      return;
    }
  }
}

void Reconciler::resolve(ByteRange range, bool wait, bool decide, Evicts evicts) const {
  resolve_but(range, wait, decide, evicts, nullptr, Commits::Tells::yes);
}

void Reconciler::resolve_but(ByteRange range, bool wait, bool decide, Evicts evicts, std::vector<Event>* unfinished,
                             Commits::Tells tells) const {
  parts_->check_not_captured();
  collect_host_writes(decide, true, evicts);
  if (parts_->deferred) std::rethrow_exception(std::exchange(parts_->deferred, nullptr));
  if (auto const failure = Commits(*parts_).resolve(range, wait, unfinished, tells)) std::rethrow_exception(failure);
}

bool Reconciler::resolve_behind(AccessContext& context, std::vector<Event> work, ByteRange range, bool wait,
                                bool decide, Commits::Tells tells) const {
  bool const unlocks = context.may_await_work();
  if (work.empty()) {
    auto const evicts = context.evicts() ? Evicts::yes : Evicts::no;
    resolve_but(range, wait, decide, evicts, unlocks ? &work : nullptr, tells);
  } else {
    parts_->check_not_captured();
  }
  if (work.empty()) return true;
  context.wait_for(std::move(work));
  return false;
}

bool Reconciler::resolve_or_wait(AccessContext& context, ByteRange range, bool decide, Commits::Tells tells) const {
  if (parts_->is_settled()) return true;
  std::vector<Event> work;
  if (context.may_await_work()) {
    parts_->replicas.pending.add_unfinished(range, work);
    if (parts_->watch.writes() != nullptr) {
      // What tells the host's writes apart looks at all of its memory, and waits for devices that write there, too.
      parts_->replicas.for_each_write_to_host_memory([&](ByteRange, Event event) {
        if (!event.ready()) work.push_back(event);
      });
    }
    add_unfinished_before_records(work);
  }
  return resolve_behind(context, std::move(work), range, true, decide, tells);
}

bool Reconciler::look_or_wait_at_pending(AccessContext& context, ByteRange range, bool decide) const {
  if (parts_->is_undisturbed() && parts_->replicas.pending.drop_ended_well()) return true;
  std::vector<Event> work;
  if (context.may_await_work()) add_unfinished_before_records(work);
  return resolve_behind(context, std::move(work), range, false, decide, Commits::Tells::yes);
}

bool Reconciler::may_record(AccessContext& context) const {
  std::vector<Event> work;
  if (context.may_await_work()) add_unfinished_before_records(work);
  if (work.empty()) return true;
  context.wait_for(std::move(work));
  return false;
}

void Reconciler::add_unfinished_before_records(std::vector<Event>& work) const {
  for (auto const& write : parts_->watch.unrecorded()) parts_->replicas.pending.add_unfinished(write.range, work);
}

bool Reconciler::resolve_quietly(AccessContext& context, ByteRange range) const {
  auto told = std::exchange(parts_->deferred, nullptr);
  bool resolved = true;
  try {
    resolved = resolve_or_wait(context, range, false, Commits::Tells::no);
  } catch (WaitInterrupted const&) {
    parts_->deferred = std::move(told);
    throw;  // no failure of the owner's
  } catch (std::exception const&) {
    if (!told) told = std::current_exception();
  }
  if (told) parts_->deferred = std::move(told);
  return resolved;
}

}  // namespace unimem::detail
