#include "device/opencl/pocl_run_order.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>
#include <string>
#include <utility>

namespace unimem::detail::opencl {
namespace {

/// The orders that some program uses, by source and kernel.
struct Orders {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<PoclRunOrder>> all;
};

Orders& orders() {
  static auto& instance = *new Orders;  // never destroyed: static programs may be made and go at any time
  return instance;
}

bool fits(PoclRunOrder::Extent const& items, PoclRunOrder::Extent const& within) noexcept {
  return std::ranges::equal(items, within, std::less_equal{});
}

}  // namespace

std::shared_ptr<PoclRunOrder> PoclRunOrder::of(Api const& api, std::string_view source, std::string_view kernel) {
  auto& [mutex, all] = orders();
  std::lock_guard const lock{mutex};
  std::erase_if(all, [](auto const& entry) { return entry.second.expired(); });
  auto& known = all[{std::string(source), std::string(kernel)}];
  auto order = known.lock();
  if (!order) known = order = std::make_shared<PoclRunOrder>(api);
  return order;
}

PoclRunOrder::Plan PoclRunOrder::prepare(Run const& run) noexcept {
  Plan plan;
  try {
    plan = decide(run);
    while (plan.foreign != nullptr) {
      // The lock stays held: the next run of this kernel would have to wait for the same event.
      auto const code = api_.clWaitForEvents(1, &plan.foreign);
      if (code != CL_SUCCESS && code != CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) {
        plan.refusal = code;
        return plan;
      }
      plan = decide(run);
    }
    auto& group = *plan.group;
    if (plan.opens) group.before.reserve(group.before.size() + group.runs.size());
    group.runs.reserve(group.runs.size() + 1);
  } catch (std::bad_alloc const&) {
    plan.refusal = CL_OUT_OF_HOST_MEMORY;
  }
  return plan;
}

PoclRunOrder::Plan PoclRunOrder::decide(Run const& run) {
  auto& group = groups_[run.local];
  settle(group);
  Plan plan{&group, run.from_zero != group.from_zero || !fits(run.items, group.items)};
  auto const await = [&](Pending const& other) {
    if (other.queue == run.queue) return;
    plan.awaited.push_back(other.event.get());
    if (other.context != run.context) plan.foreign = other.event.get();
  };
  if (plan.opens) {
    drop_ended(group.runs);
    drop_ended(group.before);
    std::ranges::for_each(group.runs, await);
    std::ranges::for_each(group.before, await);
  } else if (run.items == group.items) {
    drop_ended(group.before);
    std::ranges::for_each(group.before, await);
  } else if (group.opener) {
    await(*group.opener);
  }
  // A queue that is new to the group: the moment to let go of those that are gone.
  if (std::ranges::find(group.runs, run.queue, &Pending::queue) == group.runs.end()) drop_ended(group.runs);
  return plan;
}

void PoclRunOrder::commit(Run const& run, Plan const& plan, cl_event event) noexcept {
  auto& group = *plan.group;
  if (plan.opens) {
    std::ranges::move(group.runs, std::back_inserter(group.before));
    group.runs.clear();
    group.from_zero = run.from_zero;
    group.items = run.items;
    group.opener = pending(run, event);
  }
  auto const last = std::ranges::find(group.runs, run.queue, &Pending::queue);
  if (last == group.runs.end()) {
    group.runs.push_back(pending(run, event));
  } else {
    *last = pending(run, event);
  }
}

void PoclRunOrder::settle(Group& group) const noexcept {
  if (!group.opener) return;
  switch (status(*group.opener)) {
    case Status::pending:
      return;
    case Status::complete:
      group.before.clear();
      break;
    case Status::failed:
      group.items = {};  // it may never have begun, so which item is in front is not known
      break;
  }
  group.opener.reset();
}

void PoclRunOrder::drop_ended() noexcept {
  std::unique_lock const lock{mutex_, std::try_to_lock};
  if (!lock || driver_gone()) return;
  for (auto& [local, group] : groups_) {
    settle(group);
    drop_ended(group.before);
    drop_ended(group.runs);
  }
}

void PoclRunOrder::drop_ended(std::vector<Pending>& pending) const noexcept {
  std::erase_if(pending, [this](Pending const& one) { return status(one) != Status::pending; });
}

PoclRunOrder::Status PoclRunOrder::status(Pending const& pending) const noexcept {
  cl_int status = CL_QUEUED;
  auto* const event = pending.event.get();
  if (event == nullptr) return Status::complete;
  auto const asked = api_.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
  if (asked != CL_SUCCESS) {
    // Not known to have ended, so waited for; how it ended stays unknown.
    api_.clWaitForEvents(1, &event);
    return Status::failed;
  }
  return status > CL_COMPLETE ? Status::pending : status == CL_COMPLETE ? Status::complete : Status::failed;
}

PoclRunOrder::Pending PoclRunOrder::pending(Run const& run, cl_event event) const noexcept {
  if (api_.clRetainEvent(event) == CL_SUCCESS) return {run.context, run.queue, {api_, event}};
  api_.clWaitForEvents(1, &event);  // cannot be kept, and must not be forgotten before it has ended
  return {run.context, run.queue, {}};
}

}  // namespace unimem::detail::opencl
