#pragma once

#include <unimem/cluster/elements.hpp>
#include <unimem/cluster/pieces.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace unimem::mpi {

/// What a message was.
struct Received {
  int source = MPI_ANY_SOURCE;  ///< the rank that sent it
  int tag = MPI_ANY_TAG;
  std::size_t bytes = 0;

  friend bool operator==(Received, Received) = default;
};

namespace detail {

/// A message that was found and is not received yet: no other call can receive it. One that is not received is dropped
/// at the end, so that its sender does not wait for ever.
class MatchedMessage {
 public:
  MatchedMessage(MPI_Message message, MPI_Status const& status, MPI_Comm comm)
      : message_(message), status_(status), comm_(comm) {
    MPI_Count bytes = 0;
    MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    bytes_ = bytes == MPI_UNDEFINED ? 0 : static_cast<std::size_t>(bytes);
  }
  MatchedMessage(MatchedMessage const&) = delete;
  MatchedMessage& operator=(MatchedMessage const&) = delete;
  ~MatchedMessage() { drop(); }

  /// From MPI_PROC_NULL: there is nothing to receive.
  [[nodiscard]] bool is_from_no_rank() const noexcept { return message_ == MPI_MESSAGE_NO_PROC; }
  [[nodiscard]] Received what() const noexcept {
    if (is_from_no_rank()) return {MPI_PROC_NULL, MPI_ANY_TAG, 0};
    return {status_.MPI_SOURCE, status_.MPI_TAG, bytes_};
  }

  /// Throws SizeMismatch, with the message dropped, unless it is `window`'s bytes: as one message, or in pieces, whose
  /// header this receives then. To be called once, before the message is received.
  void check_fits(Window const& window) {
    if (bytes_ == sizeof(PieceHeader)) {
      PieceHeader header;
      take(&header, Counted(sizeof(header), {}));
      if (header.is_one()) {
        pieces_ = header;
        bytes_ = header.bytes;
      } else {
        small_ = header;
      }
    }
    bool const other_type = pieces_ && pieces_->type != type_code(window.value) && pieces_->type != 0;
    if (bytes_ == window.bytes() && !other_type) return;
    drop();
    auto const what = "a message from rank " + std::to_string(status_.MPI_SOURCE) + " with tag " +
                      std::to_string(status_.MPI_TAG) + (other_type ? " of elements of another type" : "");
    auto const size = window.elements.bytes;
    bool const is_whole = bytes_ % size == 0 && !other_type;
    throw is_whole ? SizeMismatch(what, window.count(), bytes_ / size)
                   : SizeMismatch(what, window.bytes(), bytes_, "bytes");
  }

  /// Receives it into memory of `window`'s size, which `check_fits` has seen. Blocks.
  void receive(void* memory, Window const& window) {
    if (pieces_) {
      ArrivingPieces arriving(*std::exchange(pieces_, std::nullopt), status_.MPI_SOURCE, memory, comm_);
      arriving.wait();
    } else if (small_) {
      copy_small(memory);
    } else {
      take(memory, Counted(window.count(), window.elements));
    }
  }

  /// Begins to receive it; `test` tells when it is there.
  void begin(void* memory, Window const& window) {
    if (pieces_) {
      arriving_.emplace(*std::exchange(pieces_, std::nullopt), status_.MPI_SOURCE, memory, comm_);
    } else if (small_) {
      copy_small(memory);
    } else {
      Counted const what(window.count(), window.elements);
      int const code = MPI_Imrecv(memory, what.count(), what.type(), &message_, &request_);
      message_ = MPI_MESSAGE_NULL;
      check(code, "MPI_Imrecv");
    }
  }
  bool test() {
    if (arriving_) return arriving_->test();
    int is_done = 0;
    check(MPI_Test(&request_, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
    return is_done != 0;
  }

 private:
  void take(void* memory, Counted const& what) {
    int const code = MPI_Mrecv(memory, what.count(), what.type(), &message_, &status_);
    message_ = MPI_MESSAGE_NULL;
    check(code, "MPI_Mrecv");
  }
  void copy_small(void* memory) {
    auto const header = *std::exchange(small_, std::nullopt);
    auto const* const first = reinterpret_cast<std::byte const*>(&header);
    std::copy(first, first + sizeof(header), static_cast<std::byte*>(memory));
  }
  /// Into memory of its size: with less, Open MPI 4 reads the whole of a large message to the address all the same.
  /// Where there is none, or MPI fails, the message stays with MPI.
  void drop() noexcept {
    try {
      if (message_ != MPI_MESSAGE_NULL && message_ != MPI_MESSAGE_NO_PROC) {
        std::vector<std::byte> memory(bytes_);
        take(memory.data(), Counted(bytes_, {}));
      }
      if (pieces_) drop_pieces(*std::exchange(pieces_, std::nullopt), status_.MPI_SOURCE, comm_);
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): the caller throws what is wrong with the message
    }
  }

  MPI_Message message_;
  MPI_Status status_;
  MPI_Comm comm_;
  std::size_t bytes_ = 0;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::optional<PieceHeader> pieces_;
  std::optional<PieceHeader> small_;  ///< a message of a header's size that is none, received already
  std::optional<ArrivingPieces> arriving_;
};

}  // namespace detail

}  // namespace unimem::mpi
