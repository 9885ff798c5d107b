#include "device/cuda_standin/capture.hpp"

#include <algorithm>

namespace unimem::standin {
namespace {

thread_local CaptureMode interaction = CaptureMode::global;

[[noreturn]] void invalidate(Capture& capture, Result why) {
  capture.invalid = true;
  refuse(why);
}

void require_valid(Capture const& capture) {
  require(!capture.invalid, Result::stream_capture_invalidated);
}

/// The streams of a capture forget it.
void end(std::shared_ptr<Capture> const& capture) {
  for (auto const& stream : capture->streams) {
    stream->capture = nullptr;
    stream->joined.clear();
  }
  machine().captures.erase(capture);
}

void join(std::map<Stream, std::size_t>& known, std::map<Stream, std::size_t> const& others) {
  for (auto const& [stream, count] : others) known[stream] = std::max(known[stream], count);
}

/// The capture of a stream that the legacy default stream would wait for, or null.
Capture* waits_for_captured(ContextState const& context) {
  for (auto const& capture : machine().captures) {
    for (auto const& stream : capture->streams)
      if (stream->blocking && stream->context.get() == &context) return capture.get();
  }
  return nullptr;
}

/// Whether everything captured anywhere comes before where the origin has come to.
bool is_joined(Capture const& capture) {
  auto const& known = capture.origin->joined;
  return std::ranges::all_of(capture.captured, [&](auto const& entry) {
    auto const found = known.find(entry.first);
    return entry.first == capture.origin->handle || entry.second == 0 ||
           (found != known.end() && found->second >= entry.second);
  });
}

}  // namespace

void capture_command(StreamState& stream, Command command) {
  auto& capture = *stream.capture;
  require_valid(capture);
  capture.commands.push_back(std::move(command));
  stream.joined[stream.handle] = ++capture.captured[stream.handle];
}

void capture_record(StreamState& stream, EventState& event) {
  require_valid(*stream.capture);
  event.captured = true;
  event.capture = stream.capture;
  event.joined = stream.joined;
}

void capture_wait(std::shared_ptr<StreamState> const& stream, EventState& event) {
  auto const capture = event.capture.lock();
  auto const in_progress = event.captured && capture != nullptr && machine().captures.contains(capture);
  if (!in_progress) {
    // What lies before a capture, or in one that has ended, cannot be waited for inside another.
    if (stream->capture != nullptr) invalidate(*stream->capture, Result::stream_capture_isolation);
    refuse(Result::captured_event);
  }
  require_valid(*capture);
  if (stream->capture != nullptr && stream->capture != capture) {
    stream->capture->invalid = true;
    invalidate(*capture, Result::stream_capture_merge);
  }
  if (stream->legacy) invalidate(*capture, Result::stream_capture_implicit);
  if (stream->capture == nullptr) {
    stream->capture = capture;
    stream->joined.clear();
    capture->streams.push_back(stream);
    ++capture->captured[stream->handle];  // the fork itself has to be joined
    stream->joined[stream->handle] = capture->captured[stream->handle];
  }
  join(stream->joined, event.joined);
}

void leave_capture(StreamState& stream) {
  stream.capture->invalid = true;
  std::erase_if(stream.capture->streams, [&](auto const& each) { return each.get() == &stream; });
  if (stream.capture->origin.get() == &stream) machine().captures.erase(stream.capture);
  stream.capture = nullptr;
}

void refuse_on_captured(StreamState const& stream) {
  if (stream.legacy) refuse_legacy_during_capture(*stream.context);
  if (stream.capture == nullptr) return;
  require_valid(*stream.capture);
  invalidate(*stream.capture, Result::stream_capture_unsupported);
}

void refuse_captured_event(EventState const& event) {
  if (!event.captured) return;
  if (auto const capture = event.capture.lock(); capture != nullptr && machine().captures.contains(capture))
    capture->invalid = true;
  refuse(Result::captured_event);
}

void refuse_during_capture() {
  // CUDA Driver API, cuThreadExchangeStreamCaptureMode: what a thread's own mode leaves it.
  if (interaction == CaptureMode::relaxed) return;
  auto forbidden = false;
  for (auto const& capture : machine().captures) {
    auto const mine = capture->thread == std::this_thread::get_id();
    auto const bothers_all = capture->mode == CaptureMode::global && interaction == CaptureMode::global;
    if (capture->mode == CaptureMode::relaxed || (!mine && !bothers_all)) continue;
    capture->invalid = true;
    forbidden = true;
  }
  require(!forbidden, Result::stream_capture_unsupported);
}

void refuse_legacy_during_capture(ContextState const& context) {
  if (auto* const capture = waits_for_captured(context)) invalidate(*capture, Result::stream_capture_implicit);
}

namespace calls {

Result cuThreadExchangeStreamCaptureMode(Lock& /*lock*/, CaptureMode* mode) {
  require(mode != nullptr);
  require(*mode == CaptureMode::global || *mode == CaptureMode::thread_local_only || *mode == CaptureMode::relaxed);
  std::swap(*mode, interaction);
  return Result::success;
}

Result cuStreamIsCapturing(Lock& /*lock*/, Stream stream, CaptureStatus* status) {
  require(status != nullptr);
  auto const state = stream_of(stream);
  // The answer for the legacy stream is a refusal, which harms no capture.
  if (state->legacy) require(waits_for_captured(*state->context) == nullptr, Result::stream_capture_implicit);
  *status = state->capture == nullptr ? CaptureStatus::none
            : state->capture->invalid ? CaptureStatus::invalidated
                                      : CaptureStatus::active;
  return Result::success;
}

Result cuStreamBeginCapture(Lock& /*lock*/, Stream stream, CaptureMode mode) {
  require(mode == CaptureMode::global || mode == CaptureMode::thread_local_only || mode == CaptureMode::relaxed);
  auto const state = stream_of(stream);
  require(!state->legacy, Result::stream_capture_unsupported);
  require(state->capture == nullptr, Result::invalid_value);
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = state;
  capture->streams.push_back(state);
  state->capture = capture;
  state->joined.clear();
  machine().captures.insert(std::move(capture));
  return Result::success;
}

Result cuStreamEndCapture(Lock& /*lock*/, Stream stream, Graph* graph) {
  require(graph != nullptr);
  *graph = nullptr;
  auto const state = stream_of(stream);
  auto const capture = state->capture;
  require(capture != nullptr, Result::invalid_value);
  require(capture->mode == CaptureMode::relaxed || capture->thread == std::this_thread::get_id(),
          Result::stream_capture_wrong_thread);
  if (capture->origin != state) {
    capture->invalid = true;
    refuse(Result::stream_capture_unmatched);
  }
  auto const joined = is_joined(*capture);
  end(capture);
  require_valid(*capture);
  require(joined, Result::stream_capture_unjoined);
  auto made = std::make_shared<GraphState>();
  made->commands = std::move(capture->commands);
  *graph = machine().graphs.add(std::move(made));
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
