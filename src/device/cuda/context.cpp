#include "device/cuda/context.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

namespace unimem::detail::cuda {

void refuse_memory(ContextRef const& gpu, std::size_t bytes, char const* call) {
  std::size_t free = 0, total = 0;
  static_cast<void>(gpu.driver.cuMemGetInfo(&free, &total));
  throw OutOfMemory({.where = fmt::format("{} device", gpu.device_id),
                     .requested = bytes,
                     .limit = total,
                     .largest_free = free,
                     .device_free = free,
                     .holders = {},
                     .reason = fmt::format("{}: {}", call, code_name(gpu.driver, Result::out_of_memory))});
}

}  // namespace unimem::detail::cuda
