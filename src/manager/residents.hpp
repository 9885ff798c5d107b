#pragma once

#include <unimem/manager/resident.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace unimem::detail {

/// The residents of a manager, and the calls that are running into them.
///
/// Estimates are asked under the lock, since they do not block; reclaiming happens without it, since it copies. What
/// keeps a resident alive meanwhile is its entry: it says who is inside, and removal waits for him. Two threads never
/// reclaim from one resident at a time.
///
/// Thread-safe.
class Residents {
 public:
  /// One that could give memory back, as estimated.
  struct Candidate {
    Resident* resident = nullptr;
    Resident::Reclaimable reclaimable;
  };

  void add(Resident& resident);

  /// Returns when no call into the resident is running, except one that this very thread is inside of.
  void remove(Resident& resident) noexcept;

  /// Who could give memory of this device back, cheapest per byte first. Nothing is promised: by the time one is asked
  /// it may be busy, or gone.
  [[nodiscard]] std::vector<Candidate> candidates(Device& device);

  /// Lets one give its memory back, with no lock held; 0 bytes when it is busy or gone. Throws what `try_reclaim`
  /// throws.
  std::size_t reclaim(Resident& resident, Device& device);

  /// How many calls have given memory back so far, by all threads.
  [[nodiscard]] std::uint64_t reclaims() const;

  /// Whether memory has been given back since there were `seen` reclaims, waiting for what other threads are saving
  /// now. A thread that is itself inside of a resident does not wait: two that wait for each other would wait for ever.
  [[nodiscard]] bool await_reclaim_since(std::uint64_t seen);

 private:
  using Lock = std::unique_lock<std::mutex>;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::unordered_map<Resident*, std::thread::id> inside_;  ///< no thread: nobody is inside
  std::vector<std::thread::id> reclaiming_;                ///< the threads inside any resident, once per call
  std::uint64_t reclaims_ = 0;
};

}  // namespace unimem::detail
