#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace unimem::detail {

/// A driver whose copies are faster from host memory that it has locked itself. What the system alone has locked
/// (mlock) is pageable memory to it.
class PinningDriver {
 public:
  PinningDriver() = default;
  PinningDriver(PinningDriver const&) = delete;
  PinningDriver& operator=(PinningDriver const&) = delete;

  /// What came of an attempt.
  struct Outcome {
    bool pinned = false;
    std::string refusal;  ///< why not; empty where the driver is gone and has no say any more
  };
  /// Locks whole pages for every device of the driver.
  [[nodiscard]] virtual Outcome pin(void* address, std::size_t bytes) noexcept = 0;
  virtual void unpin(void* address) noexcept = 0;

 protected:
  ~PinningDriver() = default;
};

/// The host memory that is pinned, and what has pinned it: a driver where one has come forward, else the system. What
/// was pinned before a driver came is told to it then, so that no order of first use makes copies slow. A forked child
/// has pinned nothing, and has no driver. Thread-safe.
class HostPinning {
 public:
  /// Never destroyed: memory is given back by static objects.
  [[nodiscard]] static HostPinning& instance();

  /// For as long as the process lives. At most one driver is asked: the first that came.
  void add(PinningDriver& driver);

  /// Locks `[address, address + bytes)`, whole pages that are not pinned yet. Why it was refused, or empty.
  [[nodiscard]] std::string pin(void* address, std::size_t bytes);
  /// Ends what `pin` began, before the memory goes. Nothing for memory that is not pinned.
  void unpin(void* address) noexcept;

 private:
  struct Pinned {
    std::size_t bytes = 0;
    bool by_system = false;
    bool by_driver = false;
  };

  [[nodiscard]] static std::string lock(void* address, std::size_t bytes);

  std::mutex mutex_;
  PinningDriver* driver_ = nullptr;
  std::map<void*, Pinned> pinned_;
};

}  // namespace unimem::detail
