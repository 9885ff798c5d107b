#pragma once

#include <unimem/cluster/mpi_calls.hpp>
#include <unimem/device/device.hpp>

#include <string_view>
#include <vector>

namespace unimem::mpi::detail {

/// Whether `kinds`, the value of MPI's info key "mpi_memory_alloc_kinds" ("system,cuda:device,mpi"), names memory that
/// CUDA's devices have.
inline bool names_cuda(std::string_view kinds) {
  while (!kinds.empty()) {
    auto const end = kinds.find(',');
    auto const kind = kinds.substr(0, end);
    if (kind == "cuda" || kind.starts_with("cuda:device")) return true;
    kinds = end == std::string_view::npos ? std::string_view{} : kinds.substr(end + 1);
  }
  return false;
}

/// Whether MPI says that its calls take addresses of CUDA's memory: by `MPIX_Query_cuda_support`, where the
/// implementation has it, or, since MPI 4.1, by what the communicator of all says of the kinds of memory it takes.
inline bool mpi_takes_cuda_addresses() {
  static bool const takes = [] {
#if defined(MPIX_CUDA_AWARE_SUPPORT) || defined(MPICH_VERSION)
    if (MPIX_Query_cuda_support() == 1) return true;
#endif
    MPI_Info info = MPI_INFO_NULL;
    if (MPI_Comm_get_info(MPI_COMM_WORLD, &info) != MPI_SUCCESS) return false;
    constexpr auto key = "mpi_memory_alloc_kinds";
    int length = 0;
    int is_set = 0;
    MPI_Info_get_valuelen(info, key, &length, &is_set);
    std::vector<char> kinds(static_cast<std::size_t>(length) + 1);
    if (is_set != 0) MPI_Info_get(info, key, length, kinds.data(), &is_set);
    MPI_Info_free(&info);
    return is_set != 0 && names_cuda(kinds.data());
  }();
  return takes;
}

/// Whether MPI can be given addresses of this device's memory.
inline bool mpi_reaches(Device& device) {
  return device.backend() == Backend::cuda && mpi_takes_cuda_addresses();
}

}  // namespace unimem::mpi::detail
