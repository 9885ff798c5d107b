#include "cluster/counted_calls.hpp"

#include <mpi.h>

#include <array>
#include <atomic>

// MPI's profiling interface: every call of the program is one of these, which counts and calls the one it stands for.

namespace {

std::atomic<std::size_t> sends, sent_bytes, gets, got_bytes;

std::array<std::atomic<int>, 5> failures;

int failure_of(unimem::testing::MpiCall call) {
  return failures[static_cast<std::size_t>(call)].exchange(MPI_SUCCESS);
}

std::size_t bytes_of(int count, MPI_Datatype type) {
  MPI_Count size = 0;
  PMPI_Type_size_x(type, &size);
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
}

}  // namespace

extern "C" {

int MPI_Mprobe(int from, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  if (int const code = failure_of(unimem::testing::MpiCall::probe)) return code;
  return PMPI_Mprobe(from, tag, comm, message, status);
}

int MPI_Improbe(int from, int tag, MPI_Comm comm, int* found, MPI_Message* message, MPI_Status* status) {
  if (int const code = failure_of(unimem::testing::MpiCall::probe)) return code;
  return PMPI_Improbe(from, tag, comm, found, message, status);
}

int MPI_Allreduce(void const* from, void* to, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm comm) {
  if (int const code = failure_of(unimem::testing::MpiCall::reduce)) return code;
  return PMPI_Allreduce(from, to, count, type, operation, comm);
}

int MPI_Imrecv(void* to, int count, MPI_Datatype type, MPI_Message* message, MPI_Request* request) {
  if (int const code = failure_of(unimem::testing::MpiCall::receive)) {
    PMPI_Mrecv(to, count, type, message, MPI_STATUS_IGNORE);
    return code;
  }
  return PMPI_Imrecv(to, count, type, message, request);
}

int MPI_Send(void const* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  if (int const code = failure_of(unimem::testing::MpiCall::send)) return code;
  ++sends;
  sent_bytes += bytes_of(count, type);
  return PMPI_Send(from, count, type, to, tag, comm);
}

int MPI_Isend(void const* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  if (int const code = failure_of(unimem::testing::MpiCall::send)) return code;
  ++sends;
  sent_bytes += bytes_of(count, type);
  return PMPI_Isend(from, count, type, to, tag, comm, request);
}

int MPI_Get(void* to, int count, MPI_Datatype type, int rank, MPI_Aint offset, int there, MPI_Datatype type_there,
            MPI_Win window) {
  if (int const code = failure_of(unimem::testing::MpiCall::get)) return code;
  ++gets;
  got_bytes += bytes_of(count, type);
  return PMPI_Get(to, count, type, rank, offset, there, type_there, window);
}
}

namespace unimem::testing {

CountedCalls counted_calls() {
  return {sends, sent_bytes, gets, got_bytes};
}

void fail_next(MpiCall call, int code) {
  failures[static_cast<std::size_t>(call)] = code;
}

void reset_counted_calls() {
  sends = 0;
  sent_bytes = 0;
  gets = 0;
  got_bytes = 0;
}

}  // namespace unimem::testing
