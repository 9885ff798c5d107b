#pragma once

#include <unimem/share/buffer_id.hpp>
#include <unimem/share/buffer_registry.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace unimem::detail {

/// The buffers of other processes that this one has opened. Each is one buffer here, however often it is opened, as
/// long as it has owners.
///
/// Thread-safe.
class OpenedElsewhere {
 public:
  struct Found {
    std::shared_ptr<BufferCore> core;
    Shape shape;
    SharedElement element;
    std::string name;  ///< it was published under
  };
  /// Nothing: no process of this user's offers it. Throws what Peers, SharedMemory and SharedDescription throw, and
  /// WaitInterrupted in a watched thread.
  [[nodiscard]] std::optional<Found> open(BufferId id);

  /// No process is given the buffer of that id by this one any more.
  static void withdraw(BufferId id) noexcept;

 private:
  struct Known {
    std::weak_ptr<BufferCore> core;
    Shape shape;
    SharedElement element;
    std::string name;
  };
  [[nodiscard]] std::optional<Found> find(BufferId id);

  std::mutex mutex_;
  std::map<BufferId, Known> known_;
};

}  // namespace unimem::detail
