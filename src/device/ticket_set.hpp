#pragma once

#include <unimem/device/event.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace unimem::detail {

/// Tickets of one queue, for good, in little memory: two bytes or less for each while they are rare, a few bytes for
/// any number in a row, and never more than a bit for every ticket there is.
///
/// In spans of 65,536 tickets. The latest span is a sorted list or, where that is smaller, a bitmap; the earlier ones
/// are packed into one string of bytes.
///
/// Not thread-safe.
class TicketSet {
 public:
  /// Throws std::bad_alloc, with nothing changed. Cheapest in rising order.
  void insert(Ticket ticket);

  [[nodiscard]] bool contains(Ticket ticket) const noexcept;

  /// Bytes that the tickets take.
  [[nodiscard]] std::size_t size_bytes() const noexcept;

 private:
  using Bytes = std::vector<std::uint8_t>;

  /// Of one span, by their tickets' lower bits.
  struct Members {
    std::vector<std::uint16_t> list;
    std::vector<std::uint64_t> bitmap;  ///< once there is one, the list is empty

    void insert(std::uint16_t low);
    [[nodiscard]] bool contains(std::uint16_t low) const noexcept;
    [[nodiscard]] bool empty() const noexcept { return list.empty() && bitmap.empty(); }
    template <class Visit>
    void for_each(Visit const& visit) const;
  };
  struct Packed {
    Ticket upper = 0;       ///< their tickets' upper bits
    std::size_t begin = 0;  ///< in `bytes_`; it ends where the next one begins
  };

  [[nodiscard]] static Bytes pack(Members const& members);
  [[nodiscard]] static Members unpack(Bytes const& bytes);
  [[nodiscard]] std::size_t end_of(std::size_t index) const noexcept;
  void pack_latest();
  void insert_earlier(Ticket upper, std::uint16_t low);

  Ticket upper_ = 0;  ///< of the latest span
  Members latest_;
  std::vector<Packed> packed_;  ///< ascending
  Bytes bytes_;
};

}  // namespace unimem::detail
