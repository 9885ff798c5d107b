#pragma once

#include <unimem/cluster/mpi_calls.hpp>

#include <algorithm>
#include <string>

namespace unimem::mpi::detail {

/// The tags from the highest one down that messages in pieces use among themselves (see `PieceHeader`).
inline int reserved_tags() {
  return 1 << 14;
}

/// The highest tag of a message of the caller's.
inline int highest_tag() {
  static int const highest = [] {
    int* of_mpi = nullptr;
    int is_set = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&of_mpi), &is_set);
    return (is_set != 0 ? *of_mpi : 32767) - reserved_tags();  // 32767 is what every MPI has
  }();
  return highest;
}

/// The number of ranks that can be sent to: those of the other group, of an intercommunicator.
inline int peer_count(MPI_Comm comm) {
  int is_inter = 0;
  MPI_Comm_test_inter(comm, &is_inter);
  int count = 0;
  is_inter != 0 ? MPI_Comm_remote_size(comm, &count) : MPI_Comm_size(comm, &count);
  return count;
}

/// Throws InvalidArgument for what is no communicator.
inline void check_communicator(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL) throw InvalidArgument("comm", "MPI_COMM_NULL", "a communicator");
}

/// Throws InvalidArgument for a rank that the communicator lacks. MPI_PROC_NULL is one in every communicator.
inline void check_rank(char const* argument, int rank, MPI_Comm comm) {
  auto const count = peer_count(comm);
  if ((rank >= 0 && rank < count) || rank == MPI_PROC_NULL) return;
  throw InvalidArgument(argument, std::to_string(rank),
                        "a rank of the communicator, from 0 to " + std::to_string(count - 1));
}

/// Throws InvalidArgument for a tag that a message cannot have.
inline void check_tag(int tag) {
  if (tag >= 0 && tag <= highest_tag()) return;
  throw InvalidArgument("tag", std::to_string(tag), "from 0 to " + std::to_string(highest_tag()));
}

/// The checks of sending.
inline void check_target(char const* operation, int to, int tag, MPI_Comm comm) {
  require_running(operation);
  check_communicator(comm);
  check_rank("to", to, comm);
  check_tag(tag);
}

/// The checks of receiving, which may be from any rank, and of any tag.
inline void check_source(char const* operation, int from, int tag, MPI_Comm comm) {
  require_running(operation);
  check_communicator(comm);
  if (from != MPI_ANY_SOURCE) check_rank("from", from, comm);
  if (tag != MPI_ANY_TAG) check_tag(tag);
}

}  // namespace unimem::mpi::detail
