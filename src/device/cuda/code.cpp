#include "device/cuda/code.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

namespace unimem::detail::cuda {

std::string code_name(Driver const& driver, Result code) {
  char const* name = nullptr;
  if (driver.cuGetErrorName(code, &name) == Result::success && name != nullptr) return name;
  return fmt::format("an unknown error ({})", static_cast<int>(code));
}

bool is_fatal(Result code) noexcept {
  switch (code) {
    case Result::invalid_context:
    case Result::nvlink_uncorrectable:
    case Result::ecc_uncorrectable:
    case Result::illegal_address:
    case Result::launch_timeout:
    case Result::context_is_destroyed:
    case Result::assert_failed:
    case Result::hardware_stack_error:
    case Result::illegal_instruction:
    case Result::misaligned_address:
    case Result::invalid_address_space:
    case Result::invalid_pc:
    case Result::launch_failed:
    case Result::contained:
    case Result::tensor_memory_leak:
    case Result::mps_client_terminated:
    case Result::external_device:
    case Result::unknown:
      return true;
    default:
      return false;
  }
}

void check(Driver const& driver, Result code, char const* call) {
  if (code != Result::success) {
    throw DeviceError("cuda", call, static_cast<std::int64_t>(code), code_name(driver, code));
  }
}

std::exception_ptr failure_of(Driver const& driver, Result code, char const* call) noexcept {
  try {
    check(driver, code, call);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace unimem::detail::cuda
