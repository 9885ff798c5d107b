#include <unimem/core/error.hpp>
#include <unimem/device/wait_watch.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>

#include "buffer/shared_book.hpp"
#include "buffer/shared_buffers.hpp"
#include "buffer/shared_memory.hpp"
#include "core/fork.hpp"
#include "device/watched_wait.hpp"
#include "process/peers.hpp"
#include "process/segment.hpp"
#include "share/peers_key.hpp"
#include "share/random_tag.hpp"
#include "share/sent_note.hpp"
#include "share/sent_on_device.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// Ids of what this process sends: no registry's.
class SentIds {
 public:
  [[nodiscard]] static BufferId next() {
    static constinit PerProcess<SentIds> ids;
    auto& own = ids.get();
    return {own.tag_, own.last_.fetch_add(1, std::memory_order_relaxed) + 1};
  }

 private:
  std::uint64_t const tag_ = random_tag();
  std::atomic<std::uint64_t> last_{0};
};

/// What this process is just copying to send it.
class Copying {
 public:
  /// Nothing: with `bytes` more, what is copied and what waits would be more than `most`.
  [[nodiscard]] static std::optional<Copying> begin(std::size_t bytes, std::size_t most) {
    static constinit PerProcess<Sum> of_this_process;
    auto& sum = of_this_process.get();
    std::scoped_lock const lock(sum.mutex);
    auto const before = sum.bytes + Peers::of_this_process().waiting().memory;
    if (before != 0 && (bytes > most || before > most - bytes)) return std::nullopt;
    sum.bytes += bytes;
    return Copying(sum, bytes);
  }
  Copying(Copying&& other) noexcept : sum_(std::exchange(other.sum_, nullptr)), bytes_(other.bytes_) {}
  Copying& operator=(Copying&&) = delete;
  ~Copying() {
    if (sum_ == nullptr) return;
    std::scoped_lock const lock(sum_->mutex);
    sum_->bytes -= bytes_;
  }

 private:
  struct Sum {
    std::mutex mutex;
    std::size_t bytes = 0;
  };
  Copying(Sum& sum, std::size_t bytes) noexcept : sum_(&sum), bytes_(bytes) {}

  Sum* sum_;
  std::size_t bytes_;
};

std::string title_of(BufferCore const& buffer) {
  return buffer.name().empty() ? std::string("a buffer that was sent") : std::string(buffer.name());
}

std::shared_ptr<BufferCore> over_copy(UniqueFd descriptor, std::size_t bytes, std::string const& from,
                                      BufferOptions&& options) {
  auto const segment = std::make_shared<Segment>(Segment::adopt(std::move(descriptor), bytes, from));
  BufferCore::Wrapped wrapped;
  wrapped.pointer = segment->data();
  wrapped.ownership = Ownership::take([segment](void*) {});
  auto core = BufferCore::make(bytes, std::move(options), std::move(wrapped));
  core->mark_host_dirty({0, bytes});
  return core;
}

std::shared_ptr<BufferCore> received(BufferId id, std::size_t bytes, BufferOptions options) {
  WatchedWait watch{"asking other processes for a buffer that was sent"};
  auto parcel = Peers::fetch(key_of(id), [&] { watch.look(); });
  if (!parcel) {
    throw std::runtime_error(
        "the process that sent it has ended before it was received, or it has been received before");
  }
  auto const from = fmt::format("process {}", parcel->pid);
  auto const note = SentNote::decode(parcel->bytes);
  if (!note) throw IoError(from, EPROTO, "sent what is neither a copy nor shared");
  auto& descriptors = parcel->descriptors;
  if (note->kind == SentNote::Kind::shared) {
    auto& all = SharedBuffers::of_this_process();
    if (auto same = all.find(descriptors, bytes)) return same;
    auto memory =
        SharedMemory::attach(options.name.empty() ? to_string(id) : options.name, std::move(descriptors), bytes, from);
    return all.keep(BufferCore::make(std::move(options), std::move(memory)));
  }
  if (descriptors.size() != 1 || note->bytes != bytes) {
    throw IoError(
        from, EPROTO,
        fmt::format("sent {} bytes by {} descriptors instead of {} by 1", note->bytes, descriptors.size(), bytes));
  }
  auto& only = descriptors.front();
  return note->kind == SentNote::Kind::copy
             ? over_copy(std::move(only), bytes, from, std::move(options))
             : from_copy_on(note->hardware_id, std::move(only), bytes, std::move(options));
}

/// Where a device alone has those bytes, and there is a way to hand them over there: with what is to be told of them.
std::optional<std::pair<UniqueFd, SentNote>> copy_on_device(BufferCore& buffer, ByteRange range) {
  auto* const device = sends(buffer, range);
  if (device == nullptr) return std::nullopt;
  try {
    return std::pair{copy_on(*device, buffer, range),
                     SentNote{SentNote::Kind::on_device, range.size(), device->hardware_id()}};
  } catch (OutOfMemory const&) {
    return std::nullopt;  // the host may have room
  }
}

std::pair<UniqueFd, SentNote> copy_on_host(BufferCore& buffer, ByteRange range) {
  auto const lease = buffer.map(range, MapMode::read);
  auto const* const begin = static_cast<std::byte const*>(lease.address());
  auto const segment = Segment::make_copy(title_of(buffer), {begin, range.size()});
  UniqueFd descriptor{::fcntl(segment.descriptor(), F_DUPFD_CLOEXEC, 0)};
  if (!descriptor) throw IoError(title_of(buffer), errno, "its memory cannot be handed to another process");
  return {std::move(descriptor), SentNote{SentNote::Kind::copy, range.size()}};
}

}  // namespace

BufferId send_copy(BufferCore& buffer, ByteRange range) {
  return send_copy_within(SIZE_MAX, buffer, range).value();
}

std::optional<BufferId> send_copy_within(std::size_t most_waiting, BufferCore& buffer, ByteRange range) {
  // To the end: counted twice for a moment, once it waits, and never not at all.
  auto const copying = Copying::begin(range.size(), most_waiting);
  if (!copying) return std::nullopt;
  auto copy = copy_on_device(buffer, range);
  if (!copy) copy = copy_on_host(buffer, range);
  auto& [descriptor, note] = *copy;
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(descriptor));
  auto const id = SentIds::next();
  Peers::of_this_process().offer(key_of(id), std::move(descriptors), note.encode(), Peers::Times::once, range.size());
  return id;
}

BufferId send_shared(std::shared_ptr<BufferCore> const& buffer) {
  auto const memory = buffer->share();
  static_cast<void>(SharedBuffers::of_this_process().keep(buffer));
  auto const id = SentIds::next();
  Peers::of_this_process().offer(key_of(id), memory->descriptors(),
                                 SentNote{SentNote::Kind::shared, memory->size()}.encode(), Peers::Times::once);
  return id;
}

void withdraw_sent(BufferId id) noexcept {
  Peers::of_this_process().withdraw(key_of(id));
}

SentAndWaiting sent_and_not_received() {
  auto const [count, memory] = Peers::of_this_process().waiting();
  return {count, memory};
}

void tell_of_the_end() noexcept {
  SharedBooks::tell_of_the_end();
}

std::shared_ptr<BufferCore> receive_sent(BufferId id, std::size_t bytes, BufferOptions&& options) {
  try {
    return received(id, bytes, options);
  } catch (OutOfMemory const&) {
    throw;
  } catch (WaitInterrupted const&) {
    throw;
  } catch (std::exception const&) {
    auto const failure = std::current_exception();
    auto core = BufferCore::make(bytes, std::move(options));
    core->lose(failure);
    return core;
  }
}

}  // namespace unimem::detail
