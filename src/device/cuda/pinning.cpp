#include "device/cuda/pinning.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>

namespace unimem::detail::cuda {

void CudaPinning::add(ContextRef const& gpu, Health& health) {
  std::lock_guard const lock{mutex_};
  if (std::ranges::find(gpus_, &gpu, &Gpu::context) == gpus_.end()) gpus_.push_back({&gpu, &health});
}

std::optional<CudaPinning::Gpu> CudaPinning::one_that_lives() const noexcept {
  std::lock_guard const lock{mutex_};
  auto const found = std::ranges::find_if(gpus_, [](Gpu const& gpu) { return !gpu.health->lost(); });
  return found == gpus_.end() || driver_gone() ? std::nullopt : std::optional{*found};
}

PinningDriver::Outcome CudaPinning::pin(void* address, std::size_t bytes) noexcept {
  // One that turns out to be lost is no more asked the next time.
  while (auto const gpu = one_that_lives()) {
    CurrentContext const current{*gpu->context, std::nothrow};
    auto code = current.code();
    auto const& driver = gpu->context->driver;
    if (code == Result::success) {
      code = driver.cuMemHostRegister(address, bytes, host_register_portable | host_register_device_map);
    }
    gpu->health->note(code);
    if (code == Result::success) return {.pinned = true, .refusal = {}};
    if (gpu->health->lost()) continue;
    try {
      return {.pinned = false, .refusal = fmt::format("cuMemHostRegister: {}", code_name(driver, code))};
    } catch (std::exception const&) {
      return {};  // no memory to say it with: the system locks it instead
    }
  }
  return {};
}

void CudaPinning::unpin(void* address) noexcept {
  while (auto const gpu = one_that_lives()) {
    CurrentContext const current{*gpu->context, std::nothrow};
    auto code = current.code();
    if (code == Result::success) code = gpu->context->driver.cuMemHostUnregister(address);
    gpu->health->note(code);
    if (!gpu->health->lost()) return;
  }
}

}  // namespace unimem::detail::cuda
