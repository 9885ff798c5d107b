#pragma once

#include <unimem/device/event.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace unimem::detail {

/// Tickets of one queue, for good, in little memory: two bytes for each while they are rare, and never more than a bit
/// for every ticket there is. In spans of 65,536 tickets, each a sorted list or, where that is smaller, a bitmap.
///
/// Not thread-safe.
class TicketSet {
 public:
  /// Throws std::bad_alloc, with nothing changed. Cheapest in rising order.
  void insert(Ticket ticket);

  [[nodiscard]] bool contains(Ticket ticket) const noexcept;

  /// Bytes that the tickets take, without what the spans themselves do.
  [[nodiscard]] std::size_t size_bytes() const noexcept;

 private:
  static constexpr unsigned span_bits = 16;
  static constexpr std::size_t bitmap_words = (std::size_t{1} << span_bits) / 64;
  static constexpr std::size_t longest_list = bitmap_words * 4;  ///< as large as the bitmap

  struct Span {
    std::vector<std::uint16_t> list;
    std::vector<std::uint64_t> bitmap;  ///< once there is one, the list is empty
  };

  std::map<Ticket, Span> spans_;  ///< by their tickets' upper bits
};

}  // namespace unimem::detail
