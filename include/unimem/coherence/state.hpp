#pragma once

#include <unimem/core/export.hpp>

#include <cstdint>
#include <string_view>

namespace unimem {

/// Where the current contents of a buffer are, seen from the host against the union of its devices. A projection of the
/// valid and written ranges, never stored beside them. Storage that was never used counts as holding the data
/// it will adopt. Names and first six meanings after the UnifiedBuffer reference.
enum class BufferState : std::uint8_t {
  uninitialized,  ///< no data: never touched and without storage, discarded, or lost altogether
  host_only,      ///< the data is on the host alone, and nothing written there waits to be synchronized
  device_only,    ///< the data is on devices alone, and nothing written there waits to be synchronized
  synchronized,   ///< the host and at least one device hold all of it
  host_dirty,     ///< the host holds bytes written since the last synchronization
  device_dirty,   ///< a device holds bytes written since the last synchronization
  mixed,          ///< each side holds newer bytes than the other, in disjoint ranges
};

/// The lower-case name as users see it ("host_dirty").
[[nodiscard]] UNIMEM_API std::string_view to_string(BufferState state) noexcept;

}  // namespace unimem
