#include "device/cuda/command_stream.hpp"
#include "device/process_end.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace unimem::detail::cuda {
namespace {

/// Every stream of every GPU, by the id of its queue: a stream may wait for events of any of them.
struct Streams {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<CommandStream>> all;
};

Streams& streams() {
  static auto& instance = *new Streams;  // never destroyed: static queues may go after any static of ours
  return instance;
}

}  // namespace

CommandStream::CommandStream(unimem::Device& device, EventPool& events, QueueControl& control)
    : DriverStream(device, control), events_(events), control_(control), owned_(true) {
  CurrentContext const current{events.gpu()};
  events.health().check(events.gpu().driver.cuStreamCreate(&stream_, stream_non_blocking), "cuStreamCreate");
}

CommandStream::CommandStream(unimem::Device& device, EventPool& events, QueueControl& control, Stream foreign)
    : DriverStream(device, control), events_(events), control_(control), stream_(foreign), owned_(false) {}

CommandStream::~CommandStream() {
  {
    std::lock_guard const lock{streams().mutex};
    streams().all.erase(control_.id());
  }
  if (!owned_ || stream_ == nullptr || driver_gone()) return;
  CurrentContext const current{events_.gpu(), std::nothrow};
  if (current.code() == Result::success) static_cast<void>(events_.gpu().driver.cuStreamDestroy(stream_));
}

void CommandStream::waits_for(std::span<const unimem::Event> host_work) {
  constexpr std::size_t many = 32;
  std::lock_guard const lock{host_work_mutex_};
  if (host_work_.size() >= many) std::erase_if(host_work_, [](auto event) { return event.ready(); });
  host_work_.insert(host_work_.end(), host_work.begin(), host_work.end());
}

std::vector<unimem::Event> CommandStream::host_work() const {
  std::lock_guard const lock{host_work_mutex_};
  std::erase_if(host_work_, [](auto event) { return event.ready(); });
  return host_work_;
}

void CommandStream::enter(std::shared_ptr<CommandStream> const& stream) {
  std::lock_guard const lock{streams().mutex};
  streams().all.emplace(stream->control_.id(), stream);
}

std::shared_ptr<CommandStream> CommandStream::find(std::uint64_t queue_id) {
  std::lock_guard const lock{streams().mutex};
  auto const found = streams().all.find(queue_id);
  return found == streams().all.end() ? nullptr : found->second.lock();
}

std::size_t CommandStream::ended_at_front(Pending const& pending) const noexcept {
  auto const has_ended = [](auto const& command) { return static_cast<Command const&>(*command).has_ended_well(); };
  return static_cast<std::size_t>(std::ranges::partition_point(pending, has_ended) - pending.begin());
}

}  // namespace unimem::detail::cuda
