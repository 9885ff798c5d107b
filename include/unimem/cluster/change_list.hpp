#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

// What has changed in memory that other ranks have read, and how they are told.

namespace unimem::mpi::detail {

/// Adds to `changes` the elements of `bytes` each in which the two memories differ, at their offsets plus `base`.
inline void find_changes(std::byte const* now, std::byte const* before, std::size_t size, std::size_t bytes,
                         std::size_t base, ByteRanges& changes) {
  constexpr std::size_t block = 4096;  // which the C library compares as fast as memory is read
  auto const differs = [&](std::size_t at, std::size_t count) {
    return std::memcmp(now + at, before + at, count) != 0;
  };
  auto const step = std::max(block / bytes, std::size_t{1}) * bytes;
  std::size_t begin = size;  // of the run of changed elements that is open; none
  for (std::size_t at = 0; at < size; at += step) {
    auto const end = std::min(at + step, size);
    bool const has_changed = differs(at, end - at);
    for (auto element = at; element < end; element += bytes) {
      bool const is_changed = has_changed && differs(element, bytes);
      if (is_changed && begin == size) begin = element;
      if (!is_changed && begin != size) changes.add({base + begin, base + element});
      if (!is_changed) begin = size;
      if (!has_changed) break;  // nor have the others
    }
  }
  if (begin != size) changes.add({base + begin, base + size});
}

/// Ranges of elements as bytes of a message: for each the distance from the one before and its length, seven bits a
/// byte, so that a hundred edits take some two hundred bytes.
inline std::vector<std::byte> encode(std::span<ByteRange const> ranges, std::size_t unit) {
  std::vector<std::byte> message;
  auto const put = [&](std::size_t number) {
    for (; number >= 0x80; number >>= 7) message.push_back(static_cast<std::byte>((number & 0x7F) | 0x80));
    message.push_back(static_cast<std::byte>(number));
  };
  std::size_t last = 0;
  for (auto const range : ranges) {
    put((range.begin - last) / unit);
    put(range.size() / unit);
    last = range.end;
  }
  return message;
}

/// The ranges again. Throws DeviceError("mpi", …) for what no `encode` has made of ranges in `[0, size)`.
inline std::vector<ByteRange> decode(std::span<std::byte const> message, std::size_t unit, std::size_t size) {
  std::size_t at = 0;
  auto const fail = [] {
    throw DeviceError("mpi", "reading a list of changes", 0, "it is not whole, or lies beyond the array");
  };
  auto const take = [&] {
    std::size_t number = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (at == message.size() || shift > 56) fail();
      auto const part = static_cast<std::size_t>(message[at++]);
      number |= (part & 0x7F) << shift;
      if (part < 0x80) return number;
    }
  };
  std::vector<ByteRange> ranges;
  std::size_t last = 0;
  while (at < message.size()) {
    auto const gap = take();
    auto const length = take();
    auto const left = (size - last) / unit;
    if (gap > left || length > left - gap) fail();
    auto const begin = last + gap * unit;
    ranges.push_back({begin, begin + length * unit});
    last = ranges.back().end;
  }
  return ranges;
}

/// The ranges with those joined between which fewer than `message_bytes` bytes lie: what the bytes between two ranges
/// cost is compared with what one more message costs, gap by gap, which is the least that all can cost together.
inline std::vector<ByteRange> joined(std::span<ByteRange const> ranges, std::size_t message_bytes) {
  std::vector<ByteRange> result;
  for (auto const range : ranges) {
    if (!result.empty() && range.begin - result.back().end < message_bytes) {
      result.back().end = range.end;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

}  // namespace unimem::mpi::detail
