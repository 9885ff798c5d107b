#include "cluster/counted_calls.hpp"

#include <mpi.h>

#include <atomic>

// MPI's profiling interface: every call of the program is one of these, which counts and calls the one it stands for.

namespace {

std::atomic<std::size_t> sends, sent_bytes, gets, got_bytes;

std::size_t bytes_of(int count, MPI_Datatype type) {
  MPI_Count size = 0;
  PMPI_Type_size_x(type, &size);
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
}

}  // namespace

extern "C" {

int MPI_Send(void const* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  ++sends;
  sent_bytes += bytes_of(count, type);
  return PMPI_Send(from, count, type, to, tag, comm);
}

int MPI_Isend(void const* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  ++sends;
  sent_bytes += bytes_of(count, type);
  return PMPI_Isend(from, count, type, to, tag, comm, request);
}

int MPI_Get(void* to, int count, MPI_Datatype type, int rank, MPI_Aint offset, int there, MPI_Datatype type_there,
            MPI_Win window) {
  ++gets;
  got_bytes += bytes_of(count, type);
  return PMPI_Get(to, count, type, rank, offset, there, type_there, window);
}
}

namespace unimem::testing {

CountedCalls counted_calls() {
  return {sends, sent_bytes, gets, got_bytes};
}

void reset_counted_calls() {
  sends = 0;
  sent_bytes = 0;
  gets = 0;
  got_bytes = 0;
}

}  // namespace unimem::testing
