#include "device/cuda/pinning.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>

#include <exception>
#include <new>

namespace unimem::detail::cuda {

PinningDriver::Outcome CudaPinning::pin(void* address, std::size_t bytes) noexcept {
  if (driver_gone() || health_.lost()) return {};
  CurrentContext const current{gpu_, std::nothrow};
  auto code = current.code();
  if (code == Result::success) {
    code = gpu_.driver.cuMemHostRegister(address, bytes, host_register_portable | host_register_device_map);
  }
  health_.note(code);
  if (code == Result::success) return {.pinned = true, .refusal = {}};
  if (health_.lost()) return {};
  try {
    return {.pinned = false, .refusal = fmt::format("cuMemHostRegister: {}", code_name(gpu_.driver, code))};
  } catch (std::exception const&) {
    return {};  // no memory to say it with: the system locks it instead
  }
}

void CudaPinning::unpin(void* address) noexcept {
  if (driver_gone() || health_.lost()) return;
  CurrentContext const current{gpu_, std::nothrow};
  if (current.code() == Result::success) health_.note(gpu_.driver.cuMemHostUnregister(address));
}

}  // namespace unimem::detail::cuda
