#pragma once

#include <unimem/cluster/errors_returned.hpp>
#include <unimem/cluster/message_memory.hpp>
#include <unimem/cluster/peers.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace unimem::mpi {

/// What `all_reduce` makes of the elements of all ranks.
enum class Reduction : std::uint8_t { sum, product, minimum, maximum };

namespace detail {

inline MPI_Op operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return MPI_SUM;
    case Reduction::product:
      return MPI_PROD;
    case Reduction::minimum:
      return MPI_MIN;
    case Reduction::maximum:
      return MPI_MAX;
  }
  throw InvalidArgument("reduction", std::to_string(static_cast<int>(reduction)), "one of Reduction's");
}

/// What every rank passes to a collective call has to be the same in all of them, or MPI does what it likes: so they
/// agree first, by one reduction of some numbers, and throw in all ranks where they do not.
class Agreement {
 public:
  /// `fails`: this rank throws whatever the others say; they must not wait for it.
  Agreement(Window const& window, int choice, bool fails, MPI_Comm comm) {
    std::array<std::int64_t, 7> mine{};
    auto const pair = [&](std::size_t at, std::int64_t value) {
      mine[at] = value;
      mine[at + 1] = -value;
    };
    pair(0, static_cast<std::int64_t>(window.bytes()));
    pair(2, type_code(window.value));
    pair(4, choice);
    mine[6] = fails ? 1 : 0;
    check(MPI_Allreduce(mine.data(), most_.data(), static_cast<int>(mine.size()), MPI_INT64_T, MPI_MAX, comm),
          "MPI_Allreduce");
  }

  /// Throws SizeMismatch and InvalidArgument, in every rank.
  void require(char const* operation, char const* choice) const {
    if (most_[6] != 0) throw InvalidArgument(operation, "what another rank passes", "valid in every rank");
    if (!is_same(0))
      throw SizeMismatch(operation, smallest(0), static_cast<std::size_t>(most_[0]), "bytes in every rank");
    if (!is_same(2)) throw InvalidArgument(operation, "elements of several types", "of one type in every rank");
    if (!is_same(4)) throw InvalidArgument(choice, std::to_string(most_[4]), "the same in every rank");
  }

 private:
  [[nodiscard]] bool is_same(std::size_t at) const { return most_[at] == -most_[at + 1]; }
  [[nodiscard]] std::size_t smallest(std::size_t at) const { return static_cast<std::size_t>(-most_[at + 1]); }
  std::array<std::int64_t, 7> most_{};
};

/// Calls `valid`, and keeps what it throws until all ranks have agreed.
template <class Valid>
std::exception_ptr failure_of(Valid const& valid) {
  try {
    valid();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// The host memory of an operand that MPI reads and writes in place; written when this is kept.
class BytesInPlace {
 public:
  BytesInPlace(Window const& window, bool reads, bool writes) : window_(window), writes_(writes) {
    auto const mode = !writes ? MapMode::read : reads ? MapMode::read_write : MapMode::discard;
    lease_ = window.core.map(window.range, mode);
  }
  BytesInPlace(BytesInPlace const&) = delete;
  BytesInPlace& operator=(BytesInPlace const&) = delete;
  ~BytesInPlace() {
    if (writes_) window_.core.nothing_written_through_map();
  }
  [[nodiscard]] void* address() const { return lease_.address(); }
  void keep() {
    if (std::exchange(writes_, false)) window_.core.written_through_map(window_.range, lease_);
  }

 private:
  Window const& window_;
  DeviceLease lease_;
  bool writes_;
};

}  // namespace detail

/// Every rank gets what the buffer of `root` holds:
///
///     mpi::broadcast(readwrite(x), 0, comm);
///
/// A collective call: every rank of `comm` makes it, the root with `read` or `readwrite`, the others with `write` or
/// `readwrite`, of equally many elements of one type. What a device has comes to the host first; what is received
/// counts as written on the host, and on the root nothing does.
///
/// The ranks agree on size, type and root first, by one reduction of 56 bytes: where they differ every rank throws
/// SizeMismatch or InvalidArgument, and nothing has changed; so they do where the root has no room to bring its bytes
/// to the host. Another rank that has none is waited for. Else as `send`.
inline void broadcast(KernelOperand const& x, int root, MPI_Comm comm = MPI_COMM_WORLD) {
  detail::require_running("mpi::broadcast");
  detail::check_communicator(comm);
  detail::Window const window(x);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  bool const is_root = rank == root;
  std::optional<detail::BytesInPlace> bytes;
  auto const invalid = detail::failure_of([&] {
    detail::check_rank("root", root, comm);
    if (root == MPI_PROC_NULL) throw InvalidArgument("root", "MPI_PROC_NULL", "a rank of the communicator");
    is_root ? detail::check_sent(window) : detail::check_received(window);
    if (!is_root) window.core.require_writable("mpi::broadcast");
    if (is_root) bytes.emplace(window, true, false);  // which may find no room, and the others wait for it by then
  });
  detail::ErrorsReturned const errors(comm);
  detail::Agreement const agreed(window, root, invalid != nullptr, comm);
  if (invalid) std::rethrow_exception(invalid);
  agreed.require("mpi::broadcast", "root");
  if (!is_root) bytes.emplace(window, false, true);
  detail::Counted const what(window.count(), window.elements);
  detail::check(MPI_Bcast(bytes->address(), what.count(), what.type(), root, comm), "MPI_Bcast");
  bytes->keep();
}

/// Every rank gets, element by element, the sum (or another reduction) of what all of them hold:
///
///     mpi::all_reduce(readwrite(x), mpi::Reduction::sum, comm);
///
/// A collective call on numbers, equally many of one type in every rank; it agrees on that first, as `broadcast` does.
/// Sums of floating-point numbers depend on the order in which MPI adds them. InvalidArgument for elements that are no
/// numbers, and for an operand that is not `readwrite`.
inline void all_reduce(KernelOperand const& x, Reduction reduction, MPI_Comm comm = MPI_COMM_WORLD) {
  detail::require_running("mpi::all_reduce");
  detail::check_communicator(comm);
  detail::Window const window(x);
  auto const invalid = detail::failure_of([&] {
    static_cast<void>(detail::operation_of(reduction));
    if (!window.elements.are_numbers) {
      throw InvalidArgument("elements", to_string(window.value), "integers or floating-point numbers");
    }
    if (window.intent != Intent::read_write)
      throw InvalidArgument("what is reduced", "read(…) or write(…)", "readwrite(…)");
    window.core.require_writable("mpi::all_reduce");
  });
  detail::ErrorsReturned const errors(comm);
  detail::Agreement const agreed(window, static_cast<int>(reduction), invalid != nullptr, comm);
  if (invalid) std::rethrow_exception(invalid);
  agreed.require("mpi::all_reduce", "reduction");
  detail::BytesInPlace bytes(window, true, true);
  // MPI's reductions take its own types alone, and no more than an int of them.
  auto* part = static_cast<std::byte*>(bytes.address());
  for (std::size_t left = window.count(); left > 0;) {
    auto const count = std::min<std::size_t>(left, INT_MAX);
    detail::check(MPI_Allreduce(MPI_IN_PLACE, part, static_cast<int>(count), window.elements.type,
                                detail::operation_of(reduction), comm),
                  "MPI_Allreduce");
    part += count * window.elements.bytes;
    left -= count;
  }
  bytes.keep();
}

}  // namespace unimem::mpi
