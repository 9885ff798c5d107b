#pragma once

#include "share/peer_commands.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace unimem::testing {

/// This very process as one of those that share a buffer: as `PeerProcess`, its commands are carried out elsewhere, on
/// a thread.
class OwnProcess {
 public:
  static constexpr std::chrono::seconds patience{30};

  OwnProcess() : thread_([this](std::stop_token const& stop) { work(stop); }) {}
  OwnProcess(OwnProcess const&) = delete;
  OwnProcess& operator=(OwnProcess const&) = delete;
  ~OwnProcess() {
    thread_.request_stop();
    changed_.notify_all();
  }

  void tell(std::string line) {
    std::scoped_lock const lock(mutex_);
    told_.push_back(std::move(line));
    changed_.notify_all();
  }
  [[nodiscard]] bool answers_within(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return !answers_.empty(); });
  }
  [[nodiscard]] std::string answer() {
    if (!answers_within(patience)) throw std::runtime_error("this process hangs");
    std::scoped_lock const lock(mutex_);
    auto first = std::move(answers_.front());
    answers_.pop_front();
    return first;
  }

 private:
  void work(std::stop_token const& stop) {
    PeerCommands commands;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop.stop_requested() || !told_.empty(); });
      if (told_.empty()) return;
      auto const line = std::move(told_.front());
      told_.pop_front();
      lock.unlock();
      auto answer = commands.answer(line);
      lock.lock();
      answers_.push_back(std::move(answer));
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> told_, answers_;
  std::jthread thread_;
};

}  // namespace unimem::testing
