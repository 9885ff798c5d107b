#include <unimem/buffer/double_buffer.hpp>
#include <unimem/core/error.hpp>

namespace unimem::detail {

std::optional<std::size_t> BufferTurns::take_back(bool wait) {
  std::unique_lock lock{mutex_};
  if (wait) changed_.wait(lock, [this] { return closed_ || back_free(); });
  if (closed_ || !back_free()) return std::nullopt;
  filling_ = true;
  return published_ % 2;
}

void BufferTurns::publish() {
  {
    std::lock_guard const lock{mutex_};
    check(filling_, "back", "taken by back() before it is published");
    filling_ = false;
    if (closed_) return;
    ++published_;
  }
  changed_.notify_all();
}

std::optional<std::size_t> BufferTurns::take_front(bool wait) {
  std::unique_lock lock{mutex_};
  if (wait) changed_.wait(lock, [this] { return closed_ || front_there(); });
  if (!front_there()) return std::nullopt;
  reading_ = true;
  return released_ % 2;
}

void BufferTurns::release() {
  {
    std::lock_guard const lock{mutex_};
    check(reading_, "front", "taken by front() before it is released");
    reading_ = false;
    ++released_;
  }
  changed_.notify_all();
}

void BufferTurns::swap() {
  {
    std::lock_guard const lock{mutex_};
    check(filling_, "back", "taken by back() before it is swapped");
    // Looked at or not: one thread that only ever swaps must not run out of buffers.
    if (front_there()) ++released_;
    filling_ = reading_ = false;
    if (!closed_) ++published_;
  }
  changed_.notify_all();
}

void BufferTurns::close() noexcept {
  {
    std::lock_guard const lock{mutex_};
    closed_ = true;
  }
  changed_.notify_all();
}

bool BufferTurns::closed() const noexcept {
  std::lock_guard const lock{mutex_};
  return closed_;
}

void BufferTurns::check(bool taken, char const* which, char const* required) {
  if (!taken) throw InvalidArgument(which, "none", required);
}

}  // namespace unimem::detail
