#pragma once

#include "device/opencl/handle.hpp"

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace unimem::detail::opencl {

/// The order that PoCL needs between runs of one kernel in several queues.
///
/// PoCL keeps compiled work-group functions in items, and counts for each how many runs use it. A run takes the first
/// item of its kernel and local size that serves its offset (zero or not) and is at least as wide as its range, and
/// moves it to the front; a run that ends gives back the frontmost item of its kernel and local size, whatever it took.
/// So when runs that take different items are in flight at once, one's end is counted on another's item, and below zero
/// PoCL ends the process (3.1: `pocl_release_dlhandle_cache: Assertion found->ref_count > 0 failed`).
///
/// Hence groups of runs that take one item, one group at a time: runs of one local size that agree in whether their
/// offset is zero, and are in no dimension larger than the run that opened the group. A run that does not fit waits for
/// all that is in flight and opens a group of its own. Within a group, runs as large as the opener take the same item
/// in any order and wait for nothing more; smaller ones might take a narrower item until the opener has brought its own
/// to the front, and wait for that. Other kernels and copies are never waited for, and where ranges repeat or shrink,
/// nothing is.
///
/// The waiting is the driver's, by wait lists; where an event is another context's, which no wait list may name, it is
/// the calling thread's, which must not be the one that shall open a user event before that run. An awaited run that
/// fails takes the waiting one with it (CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST): runs fail on PoCL only when
/// something they wait for does, and in the end that is a user event that was given a negative status. So a
/// negative user event in one queue can fail a run of the same kernel, but of another size, in another.
///
/// Thread-safe. Events are kept until a later run, or the end of a program of the source, finds them ended.
class PoclRunOrder {
 public:
  using Extent = std::array<std::size_t, 3>;

  /// A run as the driver is asked for it. Dimensions it does not have count as 1.
  struct Run {
    cl_context context = nullptr;
    cl_command_queue queue = nullptr;  ///< in-order
    Extent items{1, 1, 1};
    Extent local{1, 1, 1};
    bool from_zero = true;  ///< its offset is zero in every dimension
  };

  /// The order of a kernel: one for the process, since PoCL knows a kernel by its text, whatever program and context it
  /// was built for. `api` is the table by which the first caller reaches the driver, and outlives the order.
  [[nodiscard]] static std::shared_ptr<PoclRunOrder> of(Api const& api, std::string_view source,
                                                        std::string_view kernel);

  explicit PoclRunOrder(Api const& api) : api_(api) {}

  /// Enqueues `run` by `call(count, wait_list)`, which returns the driver's code and sets `*event`. One run at a time,
  /// so that the driver gets runs in the order they are decided on. A run that the driver refuses leaves no trace.
  /// Returns the driver's code, CL_OUT_OF_HOST_MEMORY where there was no memory to decide with. May block, for work of
  /// the same kernel in another context.
  template <class Call>
  [[nodiscard]] cl_int enqueue(Run const& run, cl_event* event, Call const& call) {
    std::lock_guard const lock{mutex_};
    auto const plan = prepare(run);
    if (plan.refusal != CL_SUCCESS) return plan.refusal;
    auto const& list = plan.awaited;
    auto const code = call(static_cast<cl_uint>(list.size()), list.empty() ? nullptr : list.data());
    if (code == CL_SUCCESS) commit(run, plan, *event);
    return code;
  }

  /// Lets go of events that have ended, which keep their queues and contexts alive; nothing while runs are enqueued.
  void drop_ended() noexcept;

 private:
  struct Pending {
    cl_context context = nullptr;
    cl_command_queue queue = nullptr;
    EventHandle event;
  };

  enum class Status { pending, complete, failed };

  /// The runs of one local size.
  struct Group {
    bool from_zero = true;
    Extent items{};                 ///< the opener's; zeros, into which nothing fits, if there is none
    std::optional<Pending> opener;  ///< until it is known to have ended
    std::vector<Pending> before;    ///< what the opener waits for
    std::vector<Pending> runs;      ///< the last in each queue, which ends after those before it
  };

  /// What is to be done for a run, with room made for it in its group.
  struct Plan {
    Group* group = nullptr;
    bool opens = false;
    std::vector<cl_event> awaited{};
    cl_event foreign = nullptr;  ///< one of those that only the host can wait for
    cl_int refusal = CL_SUCCESS;
  };

  [[nodiscard]] Plan prepare(Run const& run) noexcept;
  void commit(Run const& run, Plan const& plan, cl_event event) noexcept;
  /// What `run` is to do as things stand. Lets go of what has ended of its group.
  [[nodiscard]] Plan decide(Run const& run);
  /// Looks whether the opener has ended.
  void settle(Group& group) const noexcept;
  void drop_ended(std::vector<Pending>& pending) const noexcept;
  [[nodiscard]] Status status(Pending const& pending) const noexcept;
  [[nodiscard]] Pending pending(Run const& run, cl_event event) const noexcept;

  Api const& api_;
  std::mutex mutex_;                ///< taken after the submission of a queue and a program's lock on its arguments
  std::map<Extent, Group> groups_;  ///< by local size
};

}  // namespace unimem::detail::opencl
