#pragma once

#include <unimem/buffer/buffer_slice.hpp>
#include <unimem/buffer/shape.hpp>
#include <unimem/core/export.hpp>
#include <unimem/share/buffer_id.hpp>
#include <unimem/share/element_tag.hpp>

#include <array>
#include <cstddef>
#include <span>

namespace unimem {

/// Elements of a published buffer, named in a message: what is sent instead of the data. It keeps nothing alive and
/// says nothing that is believed: everything is checked when it is resolved. (After the message pattern of the
/// UnifiedBuffer guide.)
///
/// The wire form is 40 bytes, numbers little-endian, on every machine:
///
///     offset  bytes
///          0      2  the letters "uB"
///          2      1  the version, 1
///          3      1  the element tag
///          4      8  id.registry
///         12      8  id.number
///         20      8  offset, in elements
///         28      8  count, in elements; all ones: to the end
///         36      4  CRC-32 (that of IEEE 802.3 and zlib) of the 36 bytes before
struct UNIMEM_API BufferRef {
  using Wire = std::array<std::byte, 40>;

  BufferId id;
  std::size_t offset = 0;  ///< in elements
  std::size_t count = all;
  ElementTag element =
      ElementTag::any;  ///< `any` leaves it to the resolving call; else the buffer must be of these elements

  /// Total: every reference has one, also one that names nothing.
  [[nodiscard]] Wire to_wire() const noexcept;
  /// Throws InvalidArgument, naming what is wrong, unless these are the 40 bytes that `to_wire` makes. What it returns
  /// is well-formed; whether it names anything is seen when it is resolved.
  [[nodiscard]] static BufferRef from_wire(std::span<const std::byte> bytes);

  /// The elements it names, in the registry of the process: `BufferRegistry::resolve`. Defined in buffer_registry.hpp.
  template <class T = std::byte>
  [[nodiscard]] BufferSlice<T> resolve() const;

  friend constexpr bool operator==(BufferRef const&, BufferRef const&) = default;
};

}  // namespace unimem
