#include "stream/conveyor.hpp"

namespace unimem::detail {
namespace {

std::size_t take_front(std::deque<std::size_t>& line) {
  auto const slot = line.front();
  line.pop_front();
  return slot;
}

}  // namespace

Conveyor::Conveyor(std::size_t slots) {
  for (auto slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
}

std::size_t Conveyor::take_free() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping() || !free_.empty(); });
  if (stopping()) return none;
  auto const slot = free_.back();
  free_.pop_back();
  return slot;
}

void Conveyor::submitted(std::size_t slot) {
  {
    std::lock_guard const lock(mutex_);
    submitted_.push_back(slot);
    ++under_way_;
  }
  changed_.notify_all();
}

void Conveyor::submitted_all() {
  {
    std::lock_guard const lock(mutex_);
    submitted_all_ = true;
  }
  changed_.notify_all();
}

void Conveyor::ready_to_write(std::size_t slot) {
  {
    std::lock_guard const lock(mutex_);
    to_write_.push_back(slot);
  }
  changed_.notify_all();
}

std::size_t Conveyor::take_to_write() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping() || !to_write_.empty(); });
  return stopping() ? none : take_front(to_write_);
}

void Conveyor::finished(std::size_t slot, std::size_t bytes) {
  {
    std::lock_guard const lock(mutex_);
    free_.push_back(slot);
    finished_bytes_ += bytes;
    --under_way_;
  }
  changed_.notify_all();
}

Conveyor::News Conveyor::wait_for_news(std::uint64_t known_bytes, std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  auto const through = [&] { return submitted_all_ && under_way_ == 0; };
  changed_.wait_for(lock, most,
                    [&] { return stopping() || !submitted_.empty() || finished_bytes_ > known_bytes || through(); });
  if (stopping() || submitted_.empty()) return {none, finished_bytes_, through()};
  return {take_front(submitted_), finished_bytes_, false};
}

void Conveyor::stop(std::exception_ptr error) noexcept {
  {
    std::lock_guard const lock(mutex_);
    if (!stopping()) error_ = std::move(error);
    stopping_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

std::exception_ptr Conveyor::error() const {
  std::lock_guard const lock(mutex_);
  return error_;
}

}  // namespace unimem::detail
