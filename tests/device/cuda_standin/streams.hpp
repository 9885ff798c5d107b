#pragma once

#include "device/cuda_standin/machine.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

namespace unimem::standin {

/// The end of one command: what events and waiting calls look at. Under the machine's lock.
struct Completion {
  bool done = false;
  Result result = Result::success;
  std::chrono::steady_clock::time_point at{};  ///< when it was done
  Clock clock;                                 ///< what it comes after, itself included
};

enum class Cost : unsigned char { nothing, copy, kernel };

/// Something a stream does when its turn comes. A captured command is copied into its stream at every launch of the
/// graph.
struct Command {
  char const* name = "";  ///< of the call, for violations
  Cost cost = Cost::nothing;
  std::vector<Use> uses;                           ///< checked when its turn comes
  std::shared_ptr<ModuleState> module;             ///< of a kernel
  std::function<void()> work;                      ///< without the lock
  std::function<void()> effect;                    ///< with the lock, after the work
  std::vector<std::shared_ptr<Completion>> waits;  ///< what has to be done before it begins
  std::function<bool()> until;                     ///< what else has to hold, asked again and again; may be empty
  Result fault = Result::success;                  ///< how it is to fail when its turn comes
  std::uint64_t place = 0;                         ///< among all that was submitted
  bool begun = false;
  std::shared_ptr<Completion> completion;
};

struct Capture;

/// One stream. Its worker is a thread that lives from the first command until the stream is destroyed and drained.
struct StreamState {
  Stream handle = nullptr;
  std::shared_ptr<ContextState> context;
  bool blocking = true;  ///< waits for the legacy default stream, and it for this one
  bool legacy = false;
  bool held = false;
  bool destroyed = false;
  bool has_worker = false;
  std::deque<Command> commands;      ///< the one at the front leaves when it is done
  std::shared_ptr<Completion> last;  ///< of the newest command, or null
  std::condition_variable turn;      ///< for the worker: look again

  std::uint64_t number = 0;     ///< among all streams there ever were
  std::uint64_t tickets = 0;    ///< commands so far
  std::uint64_t host_seen = 0;  ///< the host's waits that `clock` knows of
  Clock clock;                  ///< what the newest command comes after

  std::shared_ptr<Capture> capture;      ///< what the stream's calls go into, or null
  std::map<Stream, std::size_t> joined;  ///< captured commands of each stream that this one comes after
};

/// A stream that belongs to a context from its beginning.
[[nodiscard]] std::shared_ptr<StreamState> make_stream(std::shared_ptr<ContextState> const& context, bool blocking);

/// The stream a handle means in the current context: the legacy default stream for null and 1, the calling thread's own
/// for 2. Refuses unknown handles and lost contexts.
[[nodiscard]] std::shared_ptr<StreamState> stream_of(Stream handle);
/// The same for work: that it goes to another context's stream than the current is noted as a violation of `call`.
[[nodiscard]] std::shared_ptr<StreamState> stream_for_work(Stream handle, char const* call);

/// Puts a command at the end of a stream, or into the graph it is captured into (then there is no completion).
std::shared_ptr<Completion> submit(std::shared_ptr<StreamState> const& stream, Command command);

/// Sleeps until a completion is done, or its context lost; then the host knows of it.
Result await(Lock& lock, ContextState const& context, std::shared_ptr<Completion> const& completion);

/// What a call does that may wait for all work of its GPU: it waits where hardware queues are shared, as in programs
/// that find out about it.
void wait_implicitly(Lock& lock, ContextState& context);

/// Whether a completion is done (null: it is), without sleeping; then the host knows of it.
Result ask(std::shared_ptr<Completion> const& completion);

/// Breaks a context: every later call in it says `code`, what is queued is skipped.
void lose(ContextState& context, Result code);
/// The same for who tells of it at once: returns when no copy of the context runs any more, whose memory, also that of
/// another device, may be anybody's then.
void lose_and_wait(Lock& lock, ContextState& context, Result code);

/// Whether a command that is queued or running touches the allocation; its name, or null.
[[nodiscard]] char const* user_of(Allocation const& allocation);

/// Lets a stream go: it finishes what it has, and its worker ends.
void retire(StreamState& stream);

}  // namespace unimem::standin
