#pragma once

#include <unimem/cluster/async_messages.hpp>
#include <unimem/cluster/errors_returned.hpp>
#include <unimem/cluster/matched_message.hpp>
#include <unimem/cluster/message_memory.hpp>
#include <unimem/cluster/peers.hpp>
#include <unimem/cluster/pieces.hpp>

#include <chrono>
#include <climits>
#include <cstddef>
#include <string>
#include <thread>

namespace unimem::mpi {

namespace detail {

/// Waits until no receive that was begun before waits for a message that this one could take from it.
inline void await_turn(Channel const& channel) {
  while (Progress::instance().would_pass(channel)) std::this_thread::sleep_for(std::chrono::microseconds{20});
}

}  // namespace detail

/// How a message is sent.
struct SendOptions {
  /// 0: one message whatever its size and wherever its bytes are. Else bytes that a device alone has, and whose
  /// addresses MPI does not take, go in pieces of so many bytes if there are more (4 MiB, say): one comes from the
  /// device while the one before it is sent. Only for peers that call `receive`, which puts them together: MPI_Recv
  /// would get the header and no word of what follows.
  std::size_t piece_bytes = 0;
};

/// Sends what is read to another rank, and returns when the buffer may be written again, as MPI_Send does:
///
///     mpi::send(read(x), 1, tag, comm);
///
/// Waits for work that writes those bytes. What is current on the host is sent from there, and nothing is moved; what a
/// device has is sent from its memory where MPI takes its addresses, else comes to the host first, or through pinned
/// blocks where it goes in pieces, counted by the buffer's statistics. Numbers are sent as MPI's own types, all other
/// elements as bytes, any number of them; the peer may call `receive`, or MPI itself but for messages in pieces.
///
/// Throws InvalidArgument for a rank or tag that there is not, and for an operand that is only written;
/// UnsupportedOperation before MPI_Init and after MPI_Finalize; what bringing the bytes throws; DeviceError("mpi", …)
/// with MPI's text, the buffer unchanged. A send to MPI_PROC_NULL does nothing. On a thread that may call MPI.
inline void send(KernelOperand const& x, int to, int tag, MPI_Comm comm = MPI_COMM_WORLD,
                 SendOptions const& options = {}) {
  detail::check_target("mpi::send", to, tag, comm);
  if (options.piece_bytes > INT_MAX) {
    throw InvalidArgument("piece_bytes", std::to_string(options.piece_bytes), "at most " + std::to_string(INT_MAX));
  }
  detail::Window const window(x);
  detail::check_sent(window);
  if (to == MPI_PROC_NULL) return;
  using detail::Channel;
  if (detail::Progress::instance().would_pass({Channel::Direction::send, comm, to, tag})) {
    return isend(x, to, tag, comm).wait();
  }
  detail::ErrorsReturned const errors(comm);
  auto const found = detail::find(window);
  bool const in_pieces = options.piece_bytes != 0 && found.other != nullptr && window.bytes() > options.piece_bytes;
  if (in_pieces) return detail::send_in_pieces(window, *found.other, to, tag, comm, options.piece_bytes);
  detail::BytesToSend const bytes(window, found);
  detail::Counted const what(window.count(), window.elements);
  detail::check(MPI_Send(bytes.address(), what.count(), what.type(), to, tag, comm), "MPI_Send");
}

/// Receives into what is written, from one rank, or MPI_ANY_SOURCE, and by one tag, or MPI_ANY_TAG, and returns when
/// the bytes are there, as MPI_Recv does. They count as written on the host, or on the device where the buffer has its
/// bytes if MPI takes that device's addresses; all other copies of them are out of date.
///
/// Throws SizeMismatch for a message that is larger or smaller than what is written, whose size is looked at before
/// anything is received: the buffer is unchanged, and the message is received and dropped. MPI tells the size of a
/// message and not its type: elements of another type are found out by their size, or where the message comes in
/// pieces. Else as `send`; where MPI fails in the middle of receiving, what was to be written is undefined. A receive
/// from MPI_PROC_NULL changes nothing.
inline Received receive(KernelOperand const& y, int from, int tag, MPI_Comm comm = MPI_COMM_WORLD) {
  detail::check_source("mpi::receive", from, tag, comm);
  detail::Window const window(y);
  detail::check_received(window);
  window.core.require_writable("mpi::receive");
  detail::await_turn({detail::Channel::Direction::receive, comm, from, tag});
  detail::ErrorsReturned const errors(comm);
  MPI_Message found = MPI_MESSAGE_NULL;
  MPI_Status status;
  detail::check(MPI_Mprobe(from, tag, comm, &found, &status), "MPI_Mprobe");
  detail::MatchedMessage message(found, status, comm);
  if (message.is_from_no_rank()) return message.what();
  message.check_fits(window);
  detail::BytesToReceive memory(window);
  auto const what = message.what();
  message.receive(memory.address(), window);
  memory.keep();
  return what;
}

}  // namespace unimem::mpi
