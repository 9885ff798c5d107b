#pragma once

#include <unimem/cluster/message_memory.hpp>
#include <unimem/cluster/peers.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Messages in pieces: bytes that a device alone has, and whose addresses MPI does not take, go through two pinned
// blocks, so that one piece comes from the device while the piece before it is sent. A header goes first, under the
// message's own tag, in whose place among other messages the whole then stands; the pieces follow under a tag of their
// own, so that nothing that other threads send gets among them.

namespace unimem::mpi::detail {

struct PieceHeader {
  static constexpr std::array<unsigned char, 16> mark = {0x75, 0x6e, 0x69, 0x6d, 0x65, 0x6d, 0xf3, 0x1c,
                                                         0x9a, 0x5e, 0x27, 0xd0, 0x84, 0xbb, 0x61, 0x4f};
  std::array<unsigned char, 16> begin = mark;
  std::uint64_t bytes = 0;        ///< of all pieces
  std::uint64_t piece_bytes = 0;  ///< of each but the last
  std::int32_t type = 0;          ///< see `type_code`
  std::int32_t tag = 0;           ///< of the pieces

  [[nodiscard]] bool is_one() const noexcept { return begin == mark; }
  [[nodiscard]] std::size_t pieces() const noexcept { return (bytes + piece_bytes - 1) / piece_bytes; }
  [[nodiscard]] std::size_t size_of(std::size_t piece) const noexcept {
    return std::min<std::size_t>(piece_bytes, bytes - piece * piece_bytes);
  }
};

/// A tag for the pieces of one message: the messages under way from one rank to another have different ones.
inline int next_piece_tag() {
  static std::atomic<unsigned> next{0};  // relaxed: a number that no other has
  return highest_tag() + 1 +
         static_cast<int>(next.fetch_add(1, std::memory_order_relaxed) % static_cast<unsigned>(reserved_tags() - 1));
}

/// Sends what `from` alone has. Pieces are smaller than INT_MAX. Should the device fail, the pieces that are left go
/// empty, which the receiver is told of by its own error.
inline void send_in_pieces(Window const& window, Device& from, int to, int tag, MPI_Comm comm,
                           std::size_t piece_bytes) {
  PieceHeader const header{PieceHeader::mark, window.bytes(), piece_bytes, type_code(window.value), next_piece_tag()};
  auto& pool = window.core.manager().pool(from, Location::pinned);
  std::array<Allocation, 2> blocks{pool.acquire(piece_bytes), pool.acquire(piece_bytes)};
  std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  check(MPI_Send(&header, sizeof(header), MPI_BYTE, to, tag, comm), "MPI_Send");
  std::size_t piece = 0;
  try {
    for (; piece < header.pieces(); ++piece) {
      auto const size = header.size_of(piece);
      auto& request = requests[piece % 2];
      check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
      auto* const block = static_cast<std::byte*>(blocks[piece % 2].data());
      window.core.read_in_place(window.range.begin + piece * piece_bytes, {block, size});
      check(MPI_Isend(block, static_cast<int>(size), MPI_BYTE, to, header.tag, comm, &request), "MPI_Isend");
    }
  } catch (...) {
    for (; piece < header.pieces(); ++piece) MPI_Send(nullptr, 0, MPI_BYTE, to, header.tag, comm);
    MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE);
    throw;
  }
  check(MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
}

/// The pieces of one message on their way into memory that stays until they are there.
class ArrivingPieces {
 public:
  ArrivingPieces(PieceHeader const& header, int from, void* memory, MPI_Comm comm) : header_(header) {
    requests_.assign(header.pieces(), MPI_REQUEST_NULL);
    statuses_.resize(requests_.size());
    for (std::size_t piece = 0; piece < requests_.size(); ++piece) {
      auto* const to = static_cast<std::byte*>(memory) + piece * header.piece_bytes;
      check(MPI_Irecv(to, static_cast<int>(header.size_of(piece)), MPI_BYTE, from, header.tag, comm, &requests_[piece]),
            "MPI_Irecv");
    }
  }

  /// Waits for all of them, and throws if the sender had to break off.
  void wait() {
    check(MPI_Waitall(count(), requests_.data(), statuses_.data()), "MPI_Waitall");
    check_whole();
  }
  /// The same without waiting; whether all are there.
  bool test() {
    int is_done = 0;
    check(MPI_Testall(count(), requests_.data(), &is_done, statuses_.data()), "MPI_Testall");
    if (is_done != 0) check_whole();
    return is_done != 0;
  }

 private:
  [[nodiscard]] int count() const { return static_cast<int>(requests_.size()); }
  void check_whole() {
    for (std::size_t piece = 0; piece < statuses_.size(); ++piece) {
      int size = 0;
      MPI_Get_count(&statuses_[piece], MPI_BYTE, &size);
      if (static_cast<std::size_t>(size) == header_.size_of(piece)) continue;
      throw DeviceError("mpi", "receiving a message in pieces", 0,
                        "the sender could not read what it had begun to send; what was to be received is undefined");
    }
  }

  PieceHeader header_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

/// Receives the pieces of a message that is wanted by no caller.
inline void drop_pieces(PieceHeader const& header, int from, MPI_Comm comm) {
  std::vector<std::byte> memory(std::min(header.bytes, header.piece_bytes));
  for (std::size_t piece = 0; piece < header.pieces(); ++piece) {
    check(MPI_Recv(memory.data(), static_cast<int>(memory.size()), MPI_BYTE, from, header.tag, comm, MPI_STATUS_IGNORE),
          "MPI_Recv");
  }
}

}  // namespace unimem::mpi::detail
