#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "buffer/copy_choice.hpp"
#include "coherence/coherence.hpp"

#include <concepts>
#include <cstddef>
#include <optional>
#include <vector>

namespace unimem {
class Device;
}  // namespace unimem

namespace unimem::detail {

struct BufferParts;

/// The size of the cells that a buffer's memory may come in: a small part of the buffer, so that they are not too many,
/// and of the memory there may be; 0 where that is next to none.
[[nodiscard]] std::size_t cell_bytes(std::size_t buffer_bytes, std::size_t memory_bytes) noexcept;

/// At which place of a device an operation on a part of a buffer works: in the copy of the whole buffer, or in a
/// window.
///
/// For the holder of the buffer's lock.
class Windows {
 public:
  explicit Windows(BufferParts& parts) noexcept : parts_(&parts) {}

  /// Whether the device has room for a whole copy, and for `beside` more bytes, with nothing evicted.
  [[nodiscard]] bool fits_whole(Device& device, std::size_t beside = 0) const;
  /// The place with memory for `range`: a leased window, the whole copy, or a window, where it is current; else a new
  /// one.
  /// With the least room the new one is `range`, as it is.
  /// `takes_whole` is asked only if there is a choice: the operation needs memory, and could do with less than for all.
  template <std::predicate TakesWhole>
  [[nodiscard]] Place place_for(Device& device, ByteRange range, TakesWhole const& takes_whole,
                                Room room = Room::ample) const {
    if (auto const place = without_choice(device, range)) return *place;
    return takes_whole() ? for_whole(device)
                         : for_window(device, room == Room::least ? range : cells_of(device, range));
  }
  /// The same for an operation on no other part.
  [[nodiscard]] Place place_for(Device& device, ByteRange range, CopyChoice& choice) const {
    return place_for(device, range, [&] { return choice.takes_whole([&] { return fits_whole(device); }); });
  }
  [[nodiscard]] Place place_for(Device& device, ByteRange range) const {
    CopyChoice choice;
    return place_for(device, range, choice);
  }
  /// Leased windows on the place's device that have some of `range`, and what of it: their users look at them wherever
  /// else it is current.
  struct Part {
    Place place = host_place;
    ByteRange range;
  };
  [[nodiscard]] std::vector<Part> leased_beside(Place place, ByteRange range) const;
  /// Throws InvalidArgument where a write at that place would go past a lease: a user of the window that is leased, and
  /// has some of the bytes too, would not see it, nor be seen. As memory of all of it they would be one.
  void check_write(Place place, ByteRange range) const;
  /// What of `range` a device's copies that there are have room for: all of it where there is no window of it.
  [[nodiscard]] std::vector<ByteRange> standing_in(Device& device, ByteRange range) const;

 private:
  [[nodiscard]] std::optional<Place> without_choice(Device& device, ByteRange range) const;
  [[nodiscard]] Place for_whole(Device& device) const;
  [[nodiscard]] Place for_window(Device& device, ByteRange range) const;
  [[nodiscard]] std::optional<Place> standing(Device& device, ByteRange range) const;
  [[nodiscard]] ByteRange cells_of(Device& device, ByteRange range) const;

  BufferParts* parts_;
};

}  // namespace unimem::detail
