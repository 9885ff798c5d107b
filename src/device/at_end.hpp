#pragma once

#include <unimem/device/detail/event_awaiter.hpp>
#include <unimem/device/event.hpp>

#include <memory>

namespace unimem::detail {

/// Something brief that is done at the end of work, where that comes to be noticed: on the thread that did the work, or
/// on one that asks drivers and runs nothing of users, so that nobody can keep it from being done.
class AtEnd : private Continuation {
 public:
  AtEnd(AtEnd const&) = delete;
  AtEnd& operator=(AtEnd const&) = delete;
  virtual ~AtEnd() = default;

  /// Called once `event` has ended, well or badly, with locks of its queue's held: it may take locks that nobody holds
  /// over a call of the library, and no others. It is destroyed afterwards. In a forked child it is not called. Where
  /// there is no thread to ask the driver (none can be started, or the process is ending) this waits for the work.
  static void have(Event event, std::unique_ptr<AtEnd> done);

 protected:
  AtEnd() noexcept { here = &call; }
  virtual void work_has_ended() noexcept = 0;

 private:
  static void call(Continuation& continuation) noexcept;
};

}  // namespace unimem::detail
