#include "buffer/shared_access.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/queue.hpp>

#include "buffer/commits.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/transfer_engine.hpp"
#include "device/call_after.hpp"
#include "device/current_task.hpp"
#include "device/process_end.hpp"
#include "device/watched_wait.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace unimem::detail {
namespace {

/// How many turns end when work has, on threads of their own.
class TurnsUnderWay {
 public:
  static TurnsUnderWay& instance() {
    static constinit PerProcess<TurnsUnderWay> all;
    return all.get();
  }

  void add() {
    std::scoped_lock const lock(mutex_);
    ++count_;
  }
  void remove() noexcept {
    std::scoped_lock const lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  void await_all() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t count_ = 0;
};

/// Calls `then` when the events have ended, before the process ends.
void call_after_all(std::vector<Event> events, std::function<void()> then) {
  static bool const registered = [] {
    watch_process_end([]() noexcept {
      // In the middle of work, which may be what a turn is to end with, it would be waited for by itself.
      if (!CurrentTask::is_ending()) TurnsUnderWay::instance().await_all();
    });
    return true;
  }();
  static_cast<void>(registered);
  auto& turns = TurnsUnderWay::instance();
  turns.add();
  auto const counted = [&turns, then = std::move(then)]() mutable {
    std::exchange(then, nullptr)();
    turns.remove();
  };
  try {
    call_after(std::move(events), counted);
  } catch (...) {
    turns.remove();
    throw;
  }
}

}  // namespace

bool SharedAccess::begin_turn(AccessContext& context, ByteRange range, Access access, HeldTurn& turn) const {
  auto const& shared = parts_->shared;
  if (access == Access::writes) parts_->made.require("writing to memory that processes share");
  // The turns of a forked child would be its parent's, and stay if it is killed: it looks without.
  if (parts_->made.inherited()) return true;
  // What others did before this turn must be known before it: of what is being written in a turn nothing is told.
  auto const seen = shared->change_count();
  auto claim = std::optional<SharedMemory::Claim>{};
  do {
    turn = nullptr;  // that of the last try, too
    note_others();
    turn = std::make_shared<SharedTurn>(shared, range, access);
    claim = turn->begin();
  } while (!claim && shared->has_news());
  if (!claim) return true;
  turn = nullptr;
  context.wait_for([memory = shared, claim = *claim, seen] {
    WatchedWait watch{"waiting for another process to be done with bytes that both share"};
    memory->wait_for(claim, seen);
    watch.look();
  });
  return false;
}

void SharedAccess::note_changes() const {
  auto const found = parts_->shared->changes();
  auto& replicas = parts_->replicas;
  bool const changes = !found.written.empty() || std::ranges::any_of(found.lost.ranges(), [&](ByteRange range) {
    return !replicas.coherence.lost().contains(range);
  });
  if (changes) ++parts_->operations;
  // With what is pending: when failed work is taken back, these are not.
  for (auto const range : found.written.ranges()) {
    Commits(*parts_).commit_write(host_place, range, {}, Commits::Events::of_all);
  }
  for (auto const range : found.lost.ranges()) {
    if (replicas.coherence.lost().contains(range)) continue;
    replicas.coherence.lose(range);
    replicas.last_failure =
        std::make_exception_ptr(std::runtime_error("another process ended while it was writing them"));
  }
  parts_->shared->have_noted(found);  // now that nothing fails any more
}

void SharedAccess::throw_refused(std::string_view operation, std::string_view why) const {
  throw UnsupportedOperation(std::string(operation), parts_->terms.display_name(), std::string(why));
}

namespace {

/// What of a lease ends with it.
struct ReplicaInTurn {
  std::shared_ptr<Replica> replica;
  HeldTurn turn;
};

/// What the device has newer of the turn's range comes to the host, when the work on it has ended.
SharedMemory::Outcome bring_to_host(BufferParts& parts, SharedTurn const& turn) {
  auto const range = turn.range();
  auto outcome = SharedMemory::Outcome::lost;
  run_admitted(operands(), [&](AccessContext& context) {
    BufferGuard const guard(parts, Watched::no);
    if (!turn.is_at(parts.shared)) return true;  // it was freed meanwhile
    if (!Reconciler(parts).resolve_quietly(context, range)) return false;
    if (!ReplicaAllocator(parts).ensure_host(context, range)) return false;
    TransferEngine transfers(parts);
    auto const plan = transfers.plan_read(host_place, range);
    if (plan.lost) return true;
    if (!transfers.bring_or_wait(context, plan)) return false;
    Commits(parts).commit(plan, {});
    outcome = SharedMemory::Outcome::written;
    return true;
  });
  return outcome;
}

void publish(BufferParts& parts, SharedTurn& turn) noexcept {
  turn.ends_as(SharedMemory::Outcome::lost);
  try {
    turn.ends_as(bring_to_host(parts, turn));
  } catch (...) {
    try {
      BufferGuard const guard(parts, Watched::no);
      if (!parts.deferred) parts.deferred = std::current_exception();
    } catch (std::exception const& error) {
      log(LogLevel::error,
          fmt::format("{}: what a device wrote does not reach other processes:", parts.terms.display_name()));
      log(LogLevel::error, error.what());
    }
  }
}

/// As `ReplicaInTurn`, of a lease that may be written through.
struct ReplicaToPublish {
  ReplicaToPublish(std::shared_ptr<Replica> of, HeldTurn begun, BufferParts& owner, Queue* in_order_of)
      : replica(std::move(of)), turn(std::move(begun)), parts(owner), hold(owner.self.hold()), queue(in_order_of) {}
  ReplicaToPublish(ReplicaToPublish const&) = delete;
  ReplicaToPublish& operator=(ReplicaToPublish const&) = delete;
  ~ReplicaToPublish() {
    if (parts.made.inherited()) return;
    try {
      publish_after(std::move(turn), parts, queue == nullptr ? std::vector<Event>{} : std::vector{queue->record()});
    } catch (std::exception const& error) {
      log(LogLevel::error,
          fmt::format("{}: what a device wrote does not reach other processes:", parts.terms.display_name()));
      log(LogLevel::error, error.what());
    }
  }

  std::shared_ptr<Replica> replica;
  HeldTurn turn;
  BufferParts& parts;
  std::shared_ptr<void> hold;
  Queue* queue;
};

}  // namespace

std::shared_ptr<Replica> with_turn(std::shared_ptr<Replica> replica, HeldTurn turn) {
  if (!turn) return replica;
  auto const both = std::make_shared<ReplicaInTurn>(std::move(replica), std::move(turn));
  return {both, both->replica.get()};
}

std::shared_ptr<Replica> publishing_at_end(std::shared_ptr<Replica> replica, HeldTurn turn, BufferParts& parts,
                                           Queue* queue) {
  if (!turn) return replica;
  auto const both = std::make_shared<ReplicaToPublish>(std::move(replica), std::move(turn), parts, queue);
  return {both, both->replica.get()};
}

void publish_after(HeldTurn turn, BufferParts& parts, std::vector<Event> events) {
  if (!turn) return;
  turn->ends_as(SharedMemory::Outcome::lost);  // unless it comes to more
  call_after_all(std::move(events),
                 [turn = std::move(turn), &parts, hold = parts.self.hold()] { publish(parts, *turn); });
}

void end_turn_after(HeldTurn turn, Event event) {
  if (!turn || event.ready()) return;
  call_after_all({event}, [turn = std::move(turn)] {});
}

}  // namespace unimem::detail
