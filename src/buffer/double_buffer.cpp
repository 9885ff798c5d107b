#include <unimem/buffer/double_buffer.hpp>
#include <unimem/core/error.hpp>

namespace unimem::detail {

std::optional<std::size_t> BufferTurns::take_back(bool wait) {
  auto& turns = state();
  std::unique_lock lock{turns.mutex};
  if (wait) turns.changed.wait(lock, [&] { return turns.closed || turns.back_free(); });
  if (turns.closed || !turns.back_free()) return std::nullopt;
  turns.filling = true;
  return turns.published % 2;
}

void BufferTurns::publish() {
  auto& turns = state();
  {
    std::lock_guard const lock{turns.mutex};
    check(turns.filling, "back", "taken by back() before it is published");
    turns.filling = false;
    if (turns.closed) return;
    ++turns.published;
  }
  turns.changed.notify_all();
}

std::optional<std::size_t> BufferTurns::take_front(bool wait) {
  auto& turns = state();
  std::unique_lock lock{turns.mutex};
  if (wait) turns.changed.wait(lock, [&] { return turns.closed || turns.front_there(); });
  if (!turns.front_there()) return std::nullopt;
  turns.reading = true;
  return turns.released % 2;
}

void BufferTurns::release() {
  auto& turns = state();
  {
    std::lock_guard const lock{turns.mutex};
    check(turns.reading, "front", "taken by front() before it is released");
    turns.reading = false;
    ++turns.released;
  }
  turns.changed.notify_all();
}

void BufferTurns::swap() {
  auto& turns = state();
  {
    std::lock_guard const lock{turns.mutex};
    check(turns.filling, "back", "taken by back() before it is swapped");
    // Looked at or not: one thread that only ever swaps must not run out of buffers.
    if (turns.front_there()) ++turns.released;
    turns.filling = turns.reading = false;
    if (!turns.closed) ++turns.published;
  }
  turns.changed.notify_all();
}

void BufferTurns::close() noexcept {
  auto* const turns = state_.find();
  if (turns == nullptr) return;
  {
    std::lock_guard const lock{turns->mutex};
    turns->closed = true;
  }
  turns->changed.notify_all();
}

bool BufferTurns::closed() const noexcept {
  auto const* const turns = state_.find();
  if (turns == nullptr) return true;
  std::lock_guard const lock{turns->mutex};
  return turns->closed;
}

void BufferTurns::check(bool taken, char const* which, char const* required) {
  if (!taken) throw InvalidArgument(which, "none", required);
}

}  // namespace unimem::detail
