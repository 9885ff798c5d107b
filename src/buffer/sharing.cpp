#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/buffer_lock.hpp"
#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/shared_memory.hpp"
#include "buffer/transfer_engine.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"
#include "process/steps.hpp"

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

// How a buffer's host memory comes to be shared with other processes.

namespace unimem {

using detail::AccessContext;
using detail::BufferAccess;
using detail::BufferParts;
using detail::Commits;
using detail::Reconciler;
using detail::ReplicaAllocator;
using detail::SharedMemory;
using detail::TransferEngine;

namespace {

/// Why the memory of a buffer cannot be put where other processes can have it; null for no reason.
char const* reason_to_stay(BufferParts const& parts) {
  if (parts.file != nullptr) return "it stands on a file, which another process can open itself";
  if (parts.terms.options.location == Location::unified) return "its host memory is a device's";
  auto const& host = parts.replicas.in_memory_of_host();
  if (!host) return nullptr;
  if (!host->pooled()) return "it stands on memory that was wrapped";
  if (host->holds().leased()) return "it is leased or mapped: end that before";
  if (host->holds().exported_for_writing())
    return "an address of its host memory was given away to be written through: publish it before, or make it with "
           "BufferOptions::shared";
  return nullptr;
}

/// The host's memory is that from now on, with what it has.
void stand_on(BufferParts& parts, std::shared_ptr<SharedMemory> memory) {
  parts.become_resident();
  parts.watch.track_by_access();
  parts.watch.never_watch();
  parts.watch.end();
  auto& replicas = parts.replicas;
  replicas.places.host_has_its_own();
  if (replicas.bytes() != 0) {
    auto replica = ReplicaAllocator::replica_over(memory);
    parts.terms.count_in(*replica);
    replica->apply_advice(parts.advice);
    // Devices that work in the host's memory have the same.
    auto const before = replicas.in_memory_of_host();
    for (auto& one : replicas.places.devices()) {
      if (before && one.replica == before) one.replica = replica;
    }
    replicas.put(host_place, std::move(replica));
  }
  parts.shared = std::move(memory);
}

}  // namespace

std::shared_ptr<BufferCore> BufferCore::make(BufferOptions&& options, std::shared_ptr<SharedMemory> memory) {
  auto core = make(memory->size(), std::move(options), std::shared_ptr<detail::BackingFile>{});
  Guard parts(*core->parts_);
  stand_on(*parts, std::move(memory));
  parts->allocated = true;
  parts->watch.wrote(parts->replicas.whole());
  auto& coherence = parts->replicas.coherence;
  coherence.add_storage(host_place);
  coherence.commit_certain(
      coherence.plan_access(host_place, parts->replicas.whole(), Intent::read, parts->replicas.places.cost()));
  parts.unlock();
  core->become_listed();
  return core;
}

std::shared_ptr<SharedMemory> BufferCore::shared_memory() const {
  detail::BufferLook const look{parts_->lock, parts_->terms};
  return parts_->shared;
}

bool BufferCore::is_shared() const {
  return parts_->terms.options.shared || shared_memory() != nullptr;
}

void BufferCore::lose(std::exception_ptr failure) {
  detail::run_admitted(use_of(detail::OperandsInUse::all_of_it), [&](AccessContext& context) {
    Guard parts(*parts_);
    auto const whole = parts->replicas.whole();
    if (!ReplicaAllocator(*parts).ensure_host(context, whole)) return false;
    auto& coherence = parts->replicas.coherence;
    coherence.commit_certain(coherence.plan_access(host_place, whole, Intent::read, parts->replicas.places.cost()));
    coherence.lose(whole);
    parts->replicas.last_failure = std::move(failure);
    return true;
  });
}

std::shared_ptr<SharedMemory> BufferCore::share() {
  std::shared_ptr<SharedMemory> shared;
  detail::run_admitted(use_of(detail::OperandsInUse::all_of_it), [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->made.require("publishing for other processes");
    parts->check_access("publishing for other processes");
    parts->check_not_captured();
    auto const whole = parts->replicas.whole();
    if (parts->shared && parts->replicas.coherence.has_data()) {  // nothing is brought, and may be lost
      shared = parts->shared;
      return true;
    }
    if (!parts->shared) {
      if (auto const* const reason = reason_to_stay(*parts)) {
        throw UnsupportedOperation("publishing for other processes", parts->terms.display_name(), reason);
      }
    }
    if (!Reconciler(*parts).resolve_or_wait(context, whole)) return false;
    if (!ReplicaAllocator(*parts).ensure_host(context, whole)) return false;
    TransferEngine transfers(*parts);
    auto const plan = transfers.plan_read(host_place, whole);
    parts->check_lost(plan);
    if (!transfers.bring_or_wait(context, plan)) return false;
    auto const& host = parts->replicas.host();
    if (host && !BufferAccess(*parts).await_or_wait(context, *host, whole, true)) return false;
    bool const has_data = parts->replicas.coherence.has_data();
    Commits(*parts).commit(plan, {});
    parts->allocated = true;
    if (!parts->shared) {
      shared = ReplicaAllocator(*parts).new_segment(context);
      if (!shared) return false;
      detail::at_step(detail::Step::publish_made_segment);
      if (has_data && host) {
        std::memcpy(shared->data(), host->host_address(), whole.size());
        parts->counters.count_on_link("host", "shared memory", whole.size(), 1);
      }
      stand_on(*parts, shared);
      detail::at_step(detail::Step::publish_copied);
    }
    shared = parts->shared;
    return true;
  });
  return shared;
}

}  // namespace unimem
