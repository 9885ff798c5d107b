#pragma once

#include <unimem/cluster/mpi_calls.hpp>

#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

namespace unimem::mpi::detail {

/// A communicator of its own, on which errors come back as codes, and memory that its ranks may read at any time, of
/// MPI's own, so that ranks of one machine share it. Zero at first. Made and destroyed by all ranks together, before
/// MPI_Finalize; afterwards nothing is left to destroy. One that an exception destroys stays with MPI: the other ranks
/// may not have met it, and this one would wait for them.
class ExposedMemory {
 public:
  ExposedMemory(MPI_Comm among, std::size_t bytes) {
    check(MPI_Comm_dup(among, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    auto const size = static_cast<MPI_Aint>(bytes);
    auto* const memory = static_cast<void*>(&memory_);
    int const made = is_on_one_machine() ? MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, comm_, memory, &window_)
                                         : MPI_Win_allocate(size, 1, MPI_INFO_NULL, comm_, memory, &window_);
    if (made != MPI_SUCCESS) {
      MPI_Comm_free(&comm_);
      check(made, "MPI_Win_allocate");
    }
    MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
    if (bytes != 0) std::memset(memory_, 0, bytes);
    check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
    store();
    check(MPI_Barrier(comm_), "MPI_Barrier");  // before that it may not be zero
  }
  ExposedMemory(ExposedMemory&& other) noexcept
      : comm_(std::exchange(other.comm_, MPI_COMM_NULL)),
        window_(std::exchange(other.window_, MPI_WIN_NULL)),
        memory_(std::exchange(other.memory_, nullptr)) {}
  ExposedMemory& operator=(ExposedMemory&&) = delete;
  ~ExposedMemory() {
    int is_finalized = 0;
    MPI_Finalized(&is_finalized);
    if (comm_ == MPI_COMM_NULL || is_finalized != 0 || std::uncaught_exceptions() > exceptions_) return;
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
    MPI_Comm_free(&comm_);
  }

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] std::byte* memory() const noexcept { return memory_; }

  /// What this rank has written to its memory is seen by reads that begin after another rank has heard of it.
  void store() { check(MPI_Win_sync(window_), "MPI_Win_sync"); }

  /// Begins to read `bytes`, at most INT_MAX, from another rank's memory.
  void begin_read(int rank, std::size_t offset, void* to, std::size_t bytes) {
    check(MPI_Get(to, static_cast<int>(bytes), MPI_BYTE, rank, static_cast<MPI_Aint>(offset), static_cast<int>(bytes),
                  MPI_BYTE, window_),
          "MPI_Get");
  }
  /// Waits for what was begun to be read from there.
  void finish_reads(int rank) { check(MPI_Win_flush(rank, window_), "MPI_Win_flush"); }

 private:
  /// Then the memory is asked for as shared: Open MPI 4 gives communicators that are made at once by one split the same
  /// memory of a machine for `MPI_Win_allocate` (open-mpi/ompi issue 9492), and their own for
  /// `MPI_Win_allocate_shared`.
  [[nodiscard]] bool is_on_one_machine() const {
    MPI_Comm near = MPI_COMM_NULL;
    check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near), "MPI_Comm_split_type");
    int all = 0;
    int of_this_machine = 0;
    MPI_Comm_size(comm_, &all);
    MPI_Comm_size(near, &of_this_machine);
    MPI_Comm_free(&near);
    return all == of_this_machine;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  std::byte* memory_ = nullptr;
  int exceptions_ = std::uncaught_exceptions();  ///< under way when this was made
};

}  // namespace unimem::mpi::detail
