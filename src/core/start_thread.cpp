#include "core/start_thread.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <string>

namespace unimem::detail {

void throw_no_thread(std::string_view purpose, std::error_code code) {
  auto const name = code.value() == EAGAIN ? std::string{"EAGAIN"} : code.message();
  throw DeviceError(
      "the system",
      fmt::format("starting a thread for {} (limits: `ulimit -u`, pids.max of the control group, memory)", purpose),
      code.value(), name);
}

}  // namespace unimem::detail
