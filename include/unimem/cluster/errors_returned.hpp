#pragma once

#include <unimem/cluster/mpi_calls.hpp>

#include <algorithm>
#include <mutex>
#include <vector>

namespace unimem::mpi::detail {

/// While one of these lives, errors on its communicator come back as codes, whatever handler the program has set; with
/// the last of them the program's handler is set again. MPI has one handler for each communicator and none for each
/// call or thread, so calls that the program makes on this communicator meanwhile return their errors as well, and a
/// handler that it sets meanwhile is lost. Where its handler is MPI_ERRORS_RETURN already nothing changes.
///
/// A duplicate of the communicator would have a handler of its own, and could not be had: making one is collective.
class ErrorsReturned {
 public:
  explicit ErrorsReturned(MPI_Comm comm) : comm_(comm) {
    std::lock_guard const lock{mutex()};
    auto const known = find(comm);
    if (known != changed().end()) {
      ++known->users;
      return;
    }
    changed().push_back({comm, MPI_ERRHANDLER_NULL, 1});
    MPI_Comm_get_errhandler(comm, &changed().back().handler);
    if (changed().back().handler != MPI_ERRORS_RETURN) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  /// What these know lives longer than static objects that are made from now on.
  static void outlive_caller() {
    mutex();
    changed();
  }
  ErrorsReturned(ErrorsReturned const&) = delete;
  ErrorsReturned& operator=(ErrorsReturned const&) = delete;
  ~ErrorsReturned() {
    std::lock_guard const lock{mutex()};
    auto const known = find(comm_);
    if (--known->users > 0) return;
    if (known->handler != MPI_ERRORS_RETURN) MPI_Comm_set_errhandler(comm_, known->handler);
    MPI_Errhandler_free(&known->handler);
    changed().erase(known);
  }

 private:
  struct Changed {
    MPI_Comm comm;
    MPI_Errhandler handler;
    int users;
  };
  static std::mutex& mutex() {
    static std::mutex of_all;
    return of_all;
  }
  static std::vector<Changed>& changed() {
    static std::vector<Changed> of_all;
    return of_all;
  }
  static std::vector<Changed>::iterator find(MPI_Comm comm) {
    return std::ranges::find(changed(), comm, &Changed::comm);
  }

  MPI_Comm comm_;
};

}  // namespace unimem::mpi::detail
