#pragma once

#include "device/cuda_standin/events.hpp"

// Stream capture: while a stream is captured, its calls become the nodes of a graph. Nodes are kept in the order of the
// calls, which is an order they may run in; what an event hands from stream to stream only decides whether the capture
// is whole at its end.

namespace unimem::standin {

struct Capture {
  CaptureMode mode = CaptureMode::global;
  std::thread::id thread;  ///< that began it
  std::shared_ptr<StreamState> origin;
  bool invalid = false;
  std::vector<Command> commands;
  std::map<Stream, std::size_t> captured;  ///< commands of each stream that takes part
  std::vector<std::shared_ptr<StreamState>> streams;
};

struct GraphState {
  std::vector<Command> commands;
};

/// An instantiated graph. One launch runs after the other, whatever their streams.
struct ExecutableState {
  std::vector<Command> commands;
  std::shared_ptr<Completion> last;
  bool launching = false;  ///< a thread is in cuGraphLaunch with it
};

/// A command of a stream that is captured. Refuses with what the capture has become invalid by, if it has.
void capture_command(StreamState& stream, Command command);

/// cuEventRecord and cuStreamWaitEvent where a capture is involved.
void capture_record(StreamState& stream, EventState& event);
void capture_wait(std::shared_ptr<StreamState> const& stream, EventState& event);

/// A destroyed stream takes its capture with it.
void leave_capture(StreamState& stream);

/// What must not be called on a stream that is captured, or an event that was: invalidates the capture and refuses.
void refuse_on_captured(StreamState const& stream);
void refuse_captured_event(EventState const& event);

/// What must not be called at all while a capture of mode global is in progress, or one of this thread: likewise.
void refuse_during_capture();

/// The legacy default stream would wait for a captured stream: likewise.
void refuse_legacy_during_capture(ContextState const& context);

}  // namespace unimem::standin
