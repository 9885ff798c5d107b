#include <unimem/core/error.hpp>
#include <unimem/device/wait_watch.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/replica_allocator.hpp"
#include "device/page_watch.hpp"
#include "manager/access_context.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

// What comes before every operation on a buffer: what was written to the host's memory behind the library's back goes
// on record, and what failed is taken back and told.

namespace unimem::detail {

void BufferParts::collect_host_writes(bool decide, bool wait, Evicts evicts) {
  std::optional<HostWriteConflict> conflict;
  if (auto* const writes = watch.writes()) {
    // With what is pending: when failed work is taken back, these are not.
    auto const record = [this](ByteRange range) {
      ++operations;
      Commits(*this).commit_write(host_place, range, {}, Commits::Events::of_all);
    };
    conflict = writes->collect(replicas.coherence, record, wait);
    watch.collected();
    counters.count_unmarked_writes(writes->take_unmarked());
  }
  record_mapped_writes(evicts);
  if (!conflict || decide) return;
  throw CoherenceConflict(terms.display_name(),
                          {replicas.places.name(conflict->device), conflict->on_device.begin, conflict->on_device.end},
                          {fmt::format("host (found by pages of {} bytes)", PageWatch::page_bytes()),
                           conflict->host.begin, conflict->host.end});
}

void BufferParts::try_to_record_writes() {
  try {
    collect_host_writes(true);
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch)
    // The bytes have been written, and too late to refuse it: the next operation records them first, or is refused.
  }
}

void BufferParts::record_mapped_writes(Evicts evicts) {
  auto& unrecorded = watch.unrecorded();
  while (!unrecorded.empty()) {
    ++operations;
    record_mapped_write(unrecorded.back(), evicts);
    unrecorded.pop_back();
  }
}

void BufferParts::record_mapped_write(MappedWrite const& write, Evicts evicts) {
  auto const raise_later = [this](std::exception_ptr failure) {
    if (failure && !deferred) deferred = std::move(failure);
  };
  AccessContext context{AccessContext::Waiting::never, evicts};  // so that there is memory, or it throws
  auto const mark = [&](ByteRanges const& ranges) {
    auto plan = replicas.coherence.plan_mark(host_place, ranges, replicas.places.cost());
    static_cast<void>(BufferAccess(*this).mark_there(context, std::move(plan), {}));
  };
  static_cast<void>(ReplicaAllocator(*this).ensure_host(context));
  raise_later(Commits(*this).resolve(write.range, true));
  auto rest = write.parts.empty() ? ByteRanges{write.range} : write.parts;
  // The bytes have been written, whatever else went wrong meanwhile: those that no device wrote count.
  while (!rest.empty()) {
    try {
      return mark(rest);
    } catch (CoherenceConflict const& conflict) {
      auto before = rest;
      before.remove({conflict.earlier.begin, replicas.bytes()});
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

void BufferParts::resolve_pending(ByteRange range, bool wait, bool decide, Evicts evicts) {
  resolve(range, wait, decide, evicts, nullptr);
}

void BufferParts::resolve(ByteRange range, bool wait, bool decide, Evicts evicts, std::vector<Event>* unfinished) {
  check_not_captured();
  collect_host_writes(decide, true, evicts);
  if (deferred) std::rethrow_exception(std::exchange(deferred, nullptr));
  if (auto const failure = Commits(*this).resolve(range, wait, unfinished)) std::rethrow_exception(failure);
}

bool BufferParts::resolve_behind(AccessContext& context, std::vector<Event> work, ByteRange range, bool wait,
                                 bool decide) {
  bool const unlocks = context.may_await_work();
  if (work.empty()) {
    auto const evicts = context.evicts() ? Evicts::yes : Evicts::no;
    resolve(range, wait, decide, evicts, unlocks ? &work : nullptr);
  } else {
    check_not_captured();
  }
  if (work.empty()) return true;
  context.wait_for(std::move(work));
  return false;
}

bool BufferParts::resolve_or_wait(AccessContext& context, ByteRange range, bool decide) {
  std::vector<Event> work;
  if (context.may_await_work()) {
    replicas.pending.add_unfinished(range, work);
    if (watch.writes() != nullptr) {
      // What tells the host's writes apart looks at all of its memory, and waits for devices that write there, too.
      replicas.for_each_write_to_host_memory([&](ByteRange, Event event) {
        if (!event.ready()) work.push_back(event);
      });
    }
    add_unfinished_before_records(work);
  }
  return resolve_behind(context, std::move(work), range, true, decide);
}

bool BufferParts::look_or_wait(AccessContext& context, ByteRange range, bool decide) {
  std::vector<Event> work;
  if (context.may_await_work()) add_unfinished_before_records(work);
  return resolve_behind(context, std::move(work), range, false, decide);
}

bool BufferParts::may_record(AccessContext& context) {
  std::vector<Event> work;
  if (context.may_await_work()) add_unfinished_before_records(work);
  if (work.empty()) return true;
  context.wait_for(std::move(work));
  return false;
}

void BufferParts::add_unfinished_before_records(std::vector<Event>& work) const {
  for (auto const& write : watch.unrecorded()) replicas.pending.add_unfinished(write.range, work);
}

bool BufferParts::resolve_for_eviction(AccessContext& context) {
  auto told = std::exchange(deferred, nullptr);
  bool resolved = true;
  try {
    resolved = resolve_or_wait(context, replicas.whole());
  } catch (WaitInterrupted const&) {
    deferred = std::move(told);
    throw;  // no failure of the owner's
  } catch (std::exception const&) {
    if (!told) told = std::current_exception();
  }
  if (told) deferred = std::move(told);
  return resolved;
}

}  // namespace unimem::detail
