#pragma once

#include <unimem/core/export.hpp>
#include <unimem/share/buffer_id.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace unimem {

namespace detail {
class PeerDeaths;
}

/// A process has ended that held buffers which this one holds, too: killed, crashed, or in the middle of a write.
struct PeerDeath {
  std::uint32_t pid = 0;
  /// What is published or opened here of what it held. What was sent without an id, as multiprocessing does, has none.
  std::vector<BufferId> buffers{};
  /// That it was writing when it ended: they are DataLost until they are written.
  std::size_t lost_bytes = 0;
};

using PeerDeathCallback = std::function<void(PeerDeath const&)>;

/// As long as it lives its callback is called. Ending it waits for a call that is going on, but for one that it is
/// ended from, and in a kernel for one that waits for that kernel; no other call comes after it. In a forked child it
/// is of nothing. Move-only.
class UNIMEM_API PeerDeathSubscription {
 public:
  /// Of nothing.
  PeerDeathSubscription() = default;
  PeerDeathSubscription(std::shared_ptr<detail::PeerDeaths> deaths, std::uint64_t id) noexcept;
  PeerDeathSubscription(PeerDeathSubscription&& other) noexcept;
  PeerDeathSubscription& operator=(PeerDeathSubscription&& other) noexcept;
  ~PeerDeathSubscription();

  /// Ends it now.
  void end() noexcept;

 private:
  std::shared_ptr<detail::PeerDeaths> deaths_;
  std::uint64_t id_ = 0;
};

}  // namespace unimem
