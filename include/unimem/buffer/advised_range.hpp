#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/advice.hpp>

namespace unimem {

class Device;

/// Advice that holds for a part of a buffer.
struct AdvisedRange {
  Advice advice = Advice::read_mostly;
  Device* place = nullptr;  ///< the place it speaks of, the host being device("cpu"); null for `read_mostly`
  ByteRange range;          ///< bytes from the start of the buffer

  friend bool operator==(AdvisedRange const&, AdvisedRange const&) = default;
};

}  // namespace unimem
