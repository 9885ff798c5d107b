#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>

#include "coherence/coherence.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace unimem::detail {

class StaleViews;
class Replica;

/// A host write that cannot be told from, or has run into, newer bytes of a device.
struct HostWriteConflict {
  ByteRange host;
  Place device = host_place;
  ByteRange on_device;
};

/// Finds out what was written to the host side of a buffer behind the library's back, through pointers it handed out.
///
/// Asked before every operation (`collect`), and told after it how things stand (`remember`). Between the two only
/// users write, so whatever has changed is theirs. The buffer's lock guards it.
class HostWrites {
 public:
  HostWrites() = default;
  HostWrites(HostWrites const&) = delete;
  HostWrites& operator=(HostWrites const&) = delete;
  virtual ~HostWrites() = default;

  /// Commits a write of the host to the coherence that was handed in with it.
  using Record = std::function<void(ByteRange)>;

  /// Records what users have written since the last call. With a conflict, which is returned, what is in conflict stays
  /// unrecorded, and is found again by the next call. What a device is still writing here is waited for, or with `wait`
  /// false left to the next call.
  [[nodiscard]] virtual std::optional<HostWriteConflict> collect(Coherence const& coherence, Record const& record,
                                                                 bool wait) = 0;

  /// Makes room, so that the next `writes` calls of `expect_device` and `expect_copy` do not throw.
  virtual void reserve(std::size_t /*writes*/) {}

  /// A device that shares this memory writes `range`, until `end`.
  virtual void expect_device(ByteRange /*range*/, Event /*end*/) {}

  /// A copy that the library does not wait for brings `range`, until `end`.
  virtual void expect_copy(ByteRange /*range*/, Event /*end*/) {}

  /// The library itself has written `range`, and no other code meanwhile.
  virtual void wrote(ByteRange range) = 0;

  /// The writes users made to `range` do not count: the device is the truth there.
  virtual void overrule(ByteRange range) = 0;

  /// A caller declares that it has written `range`: no complaint is due of anything near.
  virtual void declared(ByteRange /*range*/) {}

  /// From now on, until `not_expected`, users may write to `range`, and will say so when they are done.
  virtual void expect(ByteRange /*range*/) {}
  virtual void not_expected(ByteRange /*range*/) {}

  /// How many undeclared writes have been complained of since this was last asked.
  [[nodiscard]] virtual std::uint64_t take_unmarked() noexcept { return 0; }

  /// An operation has ended; `coherence` tells which bytes are whose.
  virtual void remember(Coherence const& coherence) = 0;
};

/// The kernel tells which pages were written (Tracking::pages). A page that also holds newer bytes of a device is
/// compared with its twin, a copy from when the device wrote, to tell just which bytes of it the host has changed.
/// `host` must be whole pages. Throws UnsupportedOperation where the system cannot track writes.
[[nodiscard]] std::unique_ptr<HostWrites> track_pages(std::shared_ptr<Replica> const& host, std::size_t bytes);

/// For UNIMEM_CHECK=1: compares checksums of what should not have changed, and complains of what has, by `name` and
/// range; the bytes count as written from then on. `last_marks` says what was declared last.
[[nodiscard]] std::unique_ptr<HostWrites> check_host(std::shared_ptr<Replica> const& host, std::size_t bytes,
                                                     std::string name, std::string const& last_marks);

/// For UNIMEM_CHECK=2: `inner`, and between operations accesses to what is stale are reported. `host`: whole pages of a
/// pool's.
[[nodiscard]] std::unique_ptr<HostWrites> guard_host(std::unique_ptr<HostWrites> inner,
                                                     std::shared_ptr<StaleViews> views,
                                                     std::shared_ptr<Replica> const& host, std::size_t bytes);

}  // namespace unimem::detail
