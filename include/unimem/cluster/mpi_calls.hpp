#pragma once

#include <unimem/core/error.hpp>

#include <string>

// The C interface alone: the C++ bindings of MPI-2, which some versions still bring, need a library of their own.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

// Buffers of several ranks: MPI moves the bytes, buffers say where they are current. Header-only, since each
// implementation of MPI has a binary interface of its own: nothing of MPI is compiled into the library.

namespace unimem::mpi::detail {

/// MPI's own words for an error code.
inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS || length <= 0) return "an unknown error";
  return {text, static_cast<std::size_t>(length)};
}

/// Throws DeviceError("mpi", call, code) with MPI's text unless `code` is MPI_SUCCESS. An error comes back to here only
/// where the communicator's handler is MPI_ERRORS_RETURN (see `ErrorsReturned`).
inline void check(int code, char const* call) {
  if (code != MPI_SUCCESS) throw DeviceError("mpi", call, code, error_text(code));
}

/// Throws UnsupportedOperation before MPI_Init and after MPI_Finalize.
inline void require_running(char const* operation) {
  int is_initialized = 0;
  int is_finalized = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_initialized == 0) throw UnsupportedOperation(operation, "MPI", "MPI_Init has not been called");
  if (is_finalized != 0) throw UnsupportedOperation(operation, "MPI", "MPI_Finalize has been called");
}

/// Throws UnsupportedOperation unless several threads may call MPI at once: what goes on behind the caller's back is
/// another thread's.
inline void require_threads(char const* operation) {
  require_running(operation);
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level >= MPI_THREAD_MULTIPLE) return;
  throw UnsupportedOperation(
      operation, "MPI", "it needs MPI_THREAD_MULTIPLE of MPI_Init_thread, which gave level " + std::to_string(level));
}

}  // namespace unimem::mpi::detail
