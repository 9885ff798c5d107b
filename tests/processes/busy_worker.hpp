#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>

#include "processes/peer_commands.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {

/// A thread that goes on with a shared buffer whatever happens to others: it writes pattern after pattern to a part of
/// its own, and reads another part, of which bytes may be lost.
class BusyWorker {
 public:
  BusyWorker(BufferSlice<std::uint8_t> own, BufferSlice<std::uint8_t> others, std::uint32_t seed)
      : thread_([this, own = std::move(own), others = std::move(others), seed]() mutable { work(own, others, seed); }) {
  }
  BusyWorker(BusyWorker const&) = delete;
  BusyWorker& operator=(BusyWorker const&) = delete;
  ~BusyWorker() { stop(); }

  [[nodiscard]] std::size_t rounds() const noexcept { return rounds_.load(); }
  /// The seed of what it has written last, or what was wrong.
  std::string rest() {
    stop();
    return failure_.empty() ? std::to_string(last_) : failure_;
  }

 private:
  void stop() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void work(BufferSlice<std::uint8_t>& own, BufferSlice<std::uint8_t> const& others, std::uint32_t seed) try {
    std::vector<std::uint8_t> bytes(own.size());
    while (!stops_) {
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern_byte(seed, i);
      own.copy_from(bytes);
      last_ = seed++;
      try {
        static_cast<void>(others.to_vector());
      } catch (DataLost const&) {  // NOLINT(bugprone-empty-catch): that is told elsewhere
      }
      ++rounds_;
    }
  } catch (std::exception const& error) {
    failure_ = error.what();
  }

  std::atomic<bool> stops_{false};
  std::atomic<std::size_t> rounds_{0};
  std::uint32_t last_ = 0;
  std::string failure_;
  std::thread thread_;
};

}  // namespace unimem::testing
