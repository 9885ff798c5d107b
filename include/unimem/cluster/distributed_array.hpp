#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/cluster/elements.hpp>
#include <unimem/cluster/errors_returned.hpp>
#include <unimem/cluster/halo_exchange.hpp>
#include <unimem/cluster/peers.hpp>
#include <unimem/core/size.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

namespace unimem::mpi {

/// How an array is distributed.
struct DistributedArrayOptions {
  std::size_t halo = 0;  ///< how many elements beyond either end of its own a rank may read
  /// What a message costs, as the number of bytes that could be moved meanwhile: two ranges that are out of date come
  /// as one where fewer bytes lie between them.
  std::size_t message_bytes = 1024;
  MemoryManager* manager = nullptr;  ///< where this rank's memory comes from; null: default_manager()
  Device* device = nullptr;          ///< on which this rank works where none is named; null: default_device()
  std::string name{};                ///< of this rank's buffer
};

/// One array, a block of it in each rank of a communicator, each of which sees some elements of its neighbours:
///
///     mpi::DistributedArray<double> a(count, comm, {.halo = 1});
///     launch(step, Range{a.own().size()}, read(a.read(a.reach())), write(b.local()));
///     b.fence();
///
/// Each rank has a buffer of its own elements and its halo, on the host and its device like any buffer. `local` is
/// written as one likes. At a `fence`, which all ranks call, what has changed in what others may see is told to them;
/// `read` then brings only what is out of date by then, by reads of the other rank's memory in which that rank takes no
/// part, and it stays until its owner changes it. What is read is as of the last fence, whatever its owner has written
/// since. At first all elements are zero.
///
/// All ranks make the array, call `fence` and the reductions, and destroy the array, before MPI_Finalize: these are
/// collective calls; the others are a rank's own affair. One thread of a rank at a time uses the array.
template <class T>
class DistributedArray {
  static_assert(std::is_trivially_copyable_v<T>, "elements travel as bytes");

 public:
  using value_type = T;
  /// Of reductions: what sums neither lose too early nor turn into another kind of number.
  using Sum = std::conditional_t<std::is_floating_point_v<T>, double,
                                 std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;

  /// Throws InvalidArgument, in every rank, if the ranks differ in count, halo or size of an element; what making a
  /// buffer throws; DeviceError("mpi", …).
  explicit DistributedArray(std::size_t count, MPI_Comm comm = MPI_COMM_WORLD,
                            DistributedArrayOptions const& options = {})
      : DistributedArray(checked(count, comm, options), comm, options, rank_in(comm)) {}

  /// Of the whole array, over all ranks.
  [[nodiscard]] std::size_t size() const noexcept { return exchange_.blocks().count(); }
  /// The elements of this rank.
  [[nodiscard]] IndexRange own() const noexcept { return exchange_.own(); }
  /// The elements that this rank may read.
  [[nodiscard]] IndexRange reach() const noexcept { return exchange_.reach(); }
  /// The elements of another rank.
  [[nodiscard]] IndexRange own(int rank) const noexcept { return exchange_.blocks().own(rank); }

  /// This rank's own elements, to be read and written here and on devices. Others see what is written after the next
  /// fence.
  [[nodiscard]] BufferSlice<T> local() { return part(own()); }

  /// Elements of the reach, to be read. Those of other ranks are as of the last fence: what of them is out of date is
  /// brought first, and nothing if nothing is: then this calls nothing of MPI. Throws InvalidArgument beyond the reach;
  /// DeviceError("mpi", …), after which what was to be brought is still out of date.
  [[nodiscard]] BufferSlice<T> read(IndexRange range) {
    if (range.begin > range.end || !reach().contains(range)) throw_beyond(range);
    if (!exchange_.is_current(range)) {
      detail::require_running("mpi::DistributedArray::read");
      exchange_.bring(range);
    }
    return part(range);
  }

  /// Tells the other ranks what of this one's elements has changed since the last fence, and hears the same of them.
  /// Found out by comparing what others may see with what they could see before, element by element: that is brought to
  /// the host for it. Two messages to each neighbour. When it returns, `read` gives what the others had at their fence.
  void fence() {
    detail::require_running("mpi::DistributedArray::fence");
    exchange_.fence();
  }

  /// The sum of all elements of all ranks, in double precision or 64 bits, which wrap around. In which order
  /// floating-point numbers are added depends on the number of ranks, and so does their rounding. This rank's elements
  /// come to the host.
  [[nodiscard]] Sum sum() {
    using Added = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;
    Added of_mine{};
    for (auto const element : mine()) of_mine += static_cast<Added>(element);
    return static_cast<Sum>(of_all(of_mine, MPI_SUM));
  }
  /// The smallest element, and the largest; NaN if one is. Throws InvalidArgument for an array of none.
  [[nodiscard]] T min() {
    auto const smallest = [](std::span<T const> elements) { return *std::ranges::min_element(elements); };
    return extreme(smallest, has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max(),
                   MPI_MIN);
  }
  [[nodiscard]] T max() {
    auto const largest = [](std::span<T const> elements) { return *std::ranges::max_element(elements); };
    return extreme(largest, has_infinity ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest(),
                   MPI_MAX);
  }

  [[nodiscard]] ExchangeStatistics statistics() const noexcept { return exchange_.statistics(); }
  /// What moved between this rank's host and its devices.
  [[nodiscard]] BufferStatistics buffer_statistics() const { return buffer_.statistics(); }

 private:
  DistributedArray(detail::BlockDistribution const& blocks, MPI_Comm comm, DistributedArrayOptions const& options,
                   int rank)
      : buffer_(blocks.reach(rank).size(), buffer_options(options)),
        whole_(buffer_.slice(0, buffer_.size())),
        exchange_(zeroed_core(), blocks, rank, sizeof(T), options.message_bytes, comm) {}

  static int rank_in(MPI_Comm comm) {
    detail::require_running("mpi::DistributedArray");
    detail::check_communicator(comm);
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return rank;
  }
  static BufferOptions buffer_options(DistributedArrayOptions const& options) {
    BufferOptions of_buffer;
    of_buffer.manager = options.manager;
    of_buffer.device = options.device;
    of_buffer.name = options.name;
    return of_buffer;
  }
  static detail::BlockDistribution checked(std::size_t count, MPI_Comm comm, DistributedArrayOptions const& options) {
    detail::require_running("mpi::DistributedArray");
    detail::check_communicator(comm);
    detail::ErrorsReturned const errors(comm);
    std::array<std::uint64_t, 6> most{count,     ~std::uint64_t{count},    options.halo, ~std::uint64_t{options.halo},
                                      sizeof(T), ~std::uint64_t{sizeof(T)}};
    detail::check(MPI_Allreduce(MPI_IN_PLACE, most.data(), static_cast<int>(most.size()), MPI_UINT64_T, MPI_MAX, comm),
                  "MPI_Allreduce");
    constexpr std::array<char const*, 3> names{"count", "halo", "the size of an element"};
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (most[2 * i] == ~most[2 * i + 1]) continue;
      throw InvalidArgument(names[i], std::to_string(most[2 * i]), "the same in every rank");
    }
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) {
      throw InvalidArgument("count", std::to_string(count), "as many elements as an address space has");
    }
    return {count, detail::peer_count(comm), options.halo};
  }

  BufferCore& zeroed_core() {
    auto const elements = buffer_.host_overwrite();
    if (!elements.empty()) std::memset(static_cast<void*>(elements.data()), 0, elements.size_bytes());
    return buffer_.core();
  }
  [[nodiscard]] BufferSlice<T> part(IndexRange range) const {
    return whole_.slice(range.begin - reach().begin, range.size());
  }
  [[noreturn]] void throw_beyond(IndexRange range) const {
    throw InvalidArgument(
        "range", "[" + std::to_string(range.begin) + ", " + std::to_string(range.end) + ")",
        "in what this rank may read, [" + std::to_string(reach().begin) + ", " + std::to_string(reach().end) + ")");
  }
  [[nodiscard]] std::span<T const> mine() {
    auto const elements = local();
    return elements.host_view();
  }
  template <class Number>
  [[nodiscard]] Number of_all(Number of_mine, MPI_Op operation) {
    static_assert(std::is_arithmetic_v<Number> && sizeof(Number) <= 8, "reductions are for numbers that MPI knows");
    detail::require_running("mpi::DistributedArray, a reduction");
    auto const elements = detail::elements_of(value_type_of<Number>());
    detail::check(MPI_Allreduce(MPI_IN_PLACE, &of_mine, 1, elements.type, operation, exchange_.comm()),
                  "MPI_Allreduce");
    return of_mine;
  }
  template <class Find>
  [[nodiscard]] T extreme(Find const& find, T of_none, MPI_Op operation) {
    if (size() == 0) throw InvalidArgument("array", "of no elements", "of one at least");
    auto const elements = mine();
    bool has_nan = false;
    if constexpr (std::is_floating_point_v<T>) {
      has_nan = std::ranges::any_of(elements, [](T element) { return std::isnan(element); });
    }
    auto const found = of_all(elements.empty() || has_nan ? of_none : find(elements), operation);
    if constexpr (std::is_floating_point_v<T>) {
      // MPI compares with NaN in an order of its own, so that a rank has one is told beside.
      if (of_all(std::uint64_t{has_nan}, MPI_MAX) != 0) return std::numeric_limits<T>::quiet_NaN();
    }
    return found;
  }
  static constexpr bool has_infinity = std::numeric_limits<T>::has_infinity;

  UnifiedBuffer<T> buffer_;
  BufferSlice<T> whole_;
  detail::HaloExchange exchange_;
};

}  // namespace unimem::mpi
