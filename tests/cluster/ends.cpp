// How MPI ends, one way a run: `ends before-and-after | pending | death`. Exits with 0 if all is as it should be.

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/kernel/operand.hpp>
#include <unimem/mpi.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace {

using unimem::read;
using unimem::readwrite;
using unimem::UnifiedBuffer;
using unimem::UnsupportedOperation;
using unimem::write;
namespace mpi = unimem::mpi;

std::vector<int> const numbers{1, 2, 3, 4, 5};

template <class Call>
bool is_unsupported(char const* what, Call const& call) {
  try {
    call();
  } catch (UnsupportedOperation const&) {
    return true;
  }
  std::printf("%s was not refused\n", what);
  return false;
}

/// Nothing can be asked of MPI before it begins and after it has ended; buffers do not mind.
bool before_and_after() {
  UnifiedBuffer<int> x(numbers.size());
  x.copy_from(numbers);
  auto const all_refused = [&] {
    bool right = is_unsupported("send", [&] { mpi::send(read(x), 0, 1); });
    right = is_unsupported("receive", [&] { mpi::receive(write(x), 0, 1); }) && right;
    right = is_unsupported("isend", [&] { mpi::isend(read(x), 0, 1); }) && right;
    right = is_unsupported("ireceive", [&] { mpi::ireceive(write(x), 0, 1); }) && right;
    right = is_unsupported("broadcast", [&] { mpi::broadcast(readwrite(x), 0); }) && right;
    right = is_unsupported("all_reduce", [&] { mpi::all_reduce(readwrite(x), mpi::Reduction::sum); }) && right;
    return is_unsupported("an array", [&] { mpi::DistributedArray<int> const array(10); }) && right;
  };
  bool right = all_refused();
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  auto array = std::make_unique<mpi::DistributedArray<int>>(10);
  auto const sent = mpi::isend(read(x), 0, 1);
  UnifiedBuffer<int> y(numbers.size());
  mpi::receive(write(y), 0, 1);
  sent.wait();
  MPI_Finalize();
  right = all_refused() && right;
  right = is_unsupported("a fence", [&] { array->fence(); }) && right;
  right = is_unsupported("a sum", [&] { static_cast<void>(array->sum()); }) && right;
  array.reset();  // too late, and no crash
  return right && x.to_vector() == numbers && y.to_vector() == numbers;
}

/// What is not received by MPI_Finalize fails, and the buffer holds what it held.
bool pending() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  UnifiedBuffer<int> x(numbers.size());
  x.copy_from(numbers);
  auto const received = mpi::ireceive(write(x), 0, 1);
  MPI_Finalize();
  bool const refused = is_unsupported("what is pending", [&] { received.wait(); });
  bool const told = is_unsupported("reading once", [&] { static_cast<void>(x.to_vector()); });
  return refused && told && x.to_vector() == numbers;
}

/// Rank 1 dies; the launcher ends the others, or, where it is told not to, rank 0 is told by an error and has what it
/// had.
bool death() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) std::raise(SIGKILL);
  UnifiedBuffer<int> x(numbers.size());
  x.copy_from(numbers);
  try {
    mpi::receive(write(x), 1, 1);
  } catch (unimem::DeviceError const& error) {
    std::printf("%s\n", error.what());
    bool const kept = error.backend == "mpi" && x.to_vector() == numbers;
    std::printf("%s\n", kept ? "kept" : "lost");
    std::fflush(stdout);
    std::_Exit(kept ? 0 : 1);  // MPI_Finalize would wait for the dead
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  std::string const way = argc > 1 ? argv[1] : "";
  bool const right = way == "before-and-after" ? before_and_after()
                     : way == "pending"        ? pending()
                                               : way == "death" && death();
  return right ? 0 : 1;
}
