#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/error.hpp>

#include "coherence/coherence.hpp"

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace unimem {
class Device;
}  // namespace unimem

namespace unimem::detail {

struct BufferParts;

/// What operations on parts of buffers give them on a device where they have no memory yet: memory for all of the
/// buffer, so that later operations find their parts in it, or else a window, which is memory for that part.
class CopyChoice {
 public:
  /// As often as the operation is tried. `room`: whether whole copies of all its buffers fit, with nothing evicted.
  [[nodiscard]] bool takes_whole(bool room) noexcept {
    bool const whole = room && !only_windows_;
    took_whole_ = took_whole_ || whole;
    return whole;
  }
  /// There was no memory. Whether another try with windows may do: the driver may have less than is known.
  [[nodiscard]] bool try_windows() noexcept { return !std::exchange(only_windows_, true) && took_whole_; }

 private:
  bool only_windows_ = false;
  bool took_whole_ = false;
};

/// Does `work(choice)`, an operation that returns what comes of it.
template <class Work>
auto with_copy_choice(Work const& work) {
  CopyChoice choice;
  try {
    return work(choice);
  } catch (OutOfMemory const&) {
    if (!choice.try_windows()) throw;
  }
  return work(choice);
}

/// At which place of a device an operation on a part of a buffer works: in the copy of the whole buffer, or in a
/// window.
///
/// For the holder of the buffer's lock.
class Windows {
 public:
  explicit Windows(BufferParts& parts) noexcept : parts_(&parts) {}

  /// Whether an operation on `range` there has the choice: it needs memory, and could do with less than for all.
  [[nodiscard]] bool may_choose(Device& device, ByteRange range) const;
  /// Whether the device has room for a whole copy, and for `beside` more bytes, with nothing evicted.
  [[nodiscard]] bool fits_whole(Device& device, std::size_t beside = 0) const;
  /// The place with memory for `range`, the whole copy first, and then a window where it is current; else a new one.
  [[nodiscard]] Place place_for(Device& device, ByteRange range, bool takes_whole) const;
  /// The same for an operation on no other part.
  [[nodiscard]] Place place_for(Device& device, ByteRange range, CopyChoice& choice) const;
  [[nodiscard]] Place place_for(Device& device, ByteRange range) const {
    CopyChoice choice;
    return place_for(device, range, choice);
  }
  /// What of `range` a device's copies that there are have room for: all of it where there is no window of it.
  [[nodiscard]] std::vector<ByteRange> standing_in(Device& device, ByteRange range) const;

 private:
  [[nodiscard]] std::optional<Place> standing(Device& device, ByteRange range) const;
  [[nodiscard]] ByteRange window_of(Device& device, ByteRange range) const;

  BufferParts* parts_;
};

}  // namespace unimem::detail
