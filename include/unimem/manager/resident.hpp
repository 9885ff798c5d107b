#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>

namespace unimem {

class Device;

/// Something that holds device memory and can give it back: what the manager sees of a buffer, which stands one floor
/// up.
class UNIMEM_API Resident {
 public:
  /// What could be had, and what it would cost.
  struct Reclaimable {
    std::size_t bytes = 0;    ///< device bytes that would become free; 0 when leased, in use or not there
    double cost_seconds = 0;  ///< write-back now plus the expected cost of bringing it back
  };

  Resident() = default;
  Resident(Resident const&) = delete;
  Resident& operator=(Resident const&) = delete;
  virtual ~Resident();

  /// An estimate, without blocking: 0 bytes when the resident is busy. Called under the manager's lock.
  [[nodiscard]] virtual Reclaimable reclaimable(Device& device) noexcept = 0;

  /// Saves what only the device holds, gives the device memory back to its pool, and returns how many bytes that were;
  /// 0 when it is busy or leased now. Called with no lock held; must not wait for a lock of another resident. Throws
  /// when saving fails, with nothing lost.
  virtual std::size_t try_reclaim(Device& device) = 0;
};

}  // namespace unimem
