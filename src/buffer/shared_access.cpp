#include "buffer/shared_access.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "buffer/buffer_access.hpp"
#include "buffer/commits.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/transfer_engine.hpp"
#include "core/fork.hpp"
#include "core/start_thread.hpp"
#include "device/current_task.hpp"
#include "device/process_end.hpp"
#include "device/watched_wait.hpp"
#include "manager/access_context.hpp"
#include "manager/admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// What is to be done when work has ended: for the turns at one memory by a thread, as long as there are any. Turns at
/// others do not wait for it.
class TurnsUnderWay {
 public:
  static TurnsUnderWay& instance() {
    static constinit PerProcess<TurnsUnderWay> all;
    return all.get();
  }

  void add(SharedMemory const& memory, Event event, std::function<void()> then) {
    End end{event, std::move(then)};  // what is not taken up is destroyed without the lock
    std::scoped_lock const lock(mutex_);
    auto const [line, is_new] = lines_.try_emplace(&memory);
    try {
      line->second.emplace_back();
      if (is_new) start_thread("the ends of turns at shared memory", [this, &memory] { work(memory); }).detach();
    } catch (...) {
      if (is_new) lines_.erase(line);
      throw;
    }
    line->second.back() = std::move(end);
    changed_.notify_all();
  }
  [[nodiscard]] bool any_at(SharedMemory const& memory) {
    std::scoped_lock const lock(mutex_);
    return lines_.contains(&memory);
  }
  void await_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return lines_.empty(); });
  }

 private:
  struct End {
    Event event;
    std::function<void()> then;
    [[nodiscard]] bool is_due() const { return event.ready(); }
  };
  using Line = std::deque<End>;

  void work(SharedMemory const& memory) noexcept {
    using namespace std::chrono_literals;
    constexpr std::chrono::microseconds shortest = 20us, longest = 200us;
    auto pause = shortest;
    std::unique_lock lock(mutex_);
    auto& line = lines_.at(&memory);
    while (!line.empty()) {
      // It does not wait for one of them, since another's work may end before; nor does it carry any out.
      auto const due = std::ranges::find_if(line, &End::is_due);
      if (due == line.end()) {
        changed_.wait_for(lock, pause);
        pause = std::min(2 * pause, longest);
        continue;
      }
      pause = shortest;
      auto end = std::move(*due);
      line.erase(due);
      lock.unlock();
      end.then();
      end = {};
      lock.lock();
    }
    lines_.erase(&memory);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SharedMemory const*, Line> lines_;
};

/// Calls `then` when the event has ended, before the process ends.
void call_after(SharedMemory const& memory, Event event, std::function<void()> then) {
  static bool const registered = [] {
    watch_process_end([]() noexcept {
      // In the middle of work, which may be what a turn is to end with, it would be waited for by itself.
      if (!CurrentTask::is_ending()) TurnsUnderWay::instance().await_all();
    });
    return true;
  }();
  static_cast<void>(registered);
  TurnsUnderWay::instance().add(memory, event, std::move(then));
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
  try {
    do {
      turn = nullptr;  // that of the last try, too
      note_others();
      turn = std::make_shared<SharedTurn>(shared, range, access);
      claim = turn->begin();
    } while (!claim && shared->has_news());
  } catch (InvalidArgument const&) {
    // There are more than may be at once, of which this process's own may be about to end.
    turn = nullptr;
    if (!TurnsUnderWay::instance().any_at(*shared)) throw;
    context.wait_for([memory = shared, seen] {
      WatchedWait watch{"waiting for work on bytes that other processes share"};
      memory->wait_for_change(seen);
      watch.look();
    });
    return false;
  }
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
  parts_->shared->end_what_is_due();  // first: of what this process is writing nothing is told
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
    auto const failure = std::make_exception_ptr(std::runtime_error("another process ended while it was writing them"));
    replicas.coherence.lose(range);
    replicas.last_failure = failure;
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
    // What works in the host's memory may be at it still.
    auto const& host = parts.replicas.host();
    if (host && !BufferAccess(parts).await_or_wait(context, *host, range, false)) return false;
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
  ReplicaToPublish(std::shared_ptr<Replica> of, HeldTurn begun, BufferParts& owner)
      : replica(std::move(of)), turn(std::move(begun)), parts(owner), hold(owner.self.hold()) {
    if (hold == nullptr) throw std::bad_alloc();
  }
  ReplicaToPublish(ReplicaToPublish const&) = delete;
  ReplicaToPublish& operator=(ReplicaToPublish const&) = delete;
  ~ReplicaToPublish() {
    // What its user has submitted the next look at the host's side waits for, as after any lease.
    if (!parts.made.inherited()) publish_after(turn, parts, {});
  }

  std::shared_ptr<Replica> replica;
  HeldTurn turn;
  BufferParts& parts;
  std::shared_ptr<void> hold;
};

}  // namespace

std::shared_ptr<Replica> with_turn(std::shared_ptr<Replica> replica, HeldTurn turn) {
  if (!turn) return replica;
  auto const both = std::make_shared<ReplicaInTurn>(std::move(replica), std::move(turn));
  return {both, both->replica.get()};
}

std::shared_ptr<Replica> publishing_at_end(std::shared_ptr<Replica> replica, HeldTurn turn, BufferParts& parts) {
  if (!turn) return replica;
  auto const both = std::make_shared<ReplicaToPublish>(std::move(replica), std::move(turn), parts);
  return {both, both->replica.get()};
}

void publish_after(HeldTurn const& turn, BufferParts& parts, Event event) noexcept {
  if (!turn) return;
  turn->ends_as(SharedMemory::Outcome::lost);  // unless it comes to more
  auto const hold = parts.self.hold();
  try {
    if (hold == nullptr) throw std::bad_alloc();
    call_after(turn->memory(), event, [turn, &parts, hold] { publish(parts, *turn); });
  } catch (std::exception const&) {
    // Without memory, or a thread, for that: now. Or others would be at bytes that the work is still writing.
    static_cast<void>(event.wait_for_error());
    publish(parts, *turn);
  }
}

void end_turn_after(HeldTurn const& turn, Event event) {
  if (!turn || event.ready()) return;
  call_after(turn->memory(), event, [turn] {});
}

void end_turns(OperandTurns const& turns) noexcept {
  for (auto const& one : turns) {
    if (one.turn->writes()) {
      publish_after(one.turn, *one.parts, one.end);
      continue;
    }
    try {
      end_turn_after(one.turn, one.end);
    } catch (std::exception const&) {
      static_cast<void>(one.end.wait_for_error());
    }
  }
}

}  // namespace unimem::detail
