#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace unimem::detail {

/// Throws the DeviceError of a thread that the system does not give.
[[noreturn]] void throw_no_thread(std::string_view purpose, std::error_code code);

/// A thread (std::thread or std::jthread) that runs `work`, for `purpose` ("the work of a queue"). Throws DeviceError
/// with the purpose, the system's code and the limits to look at where the system does not give one. Thread-safe.
template <class Thread = std::thread, class Work>
[[nodiscard]] Thread start_thread(std::string_view purpose, Work&& work) {
  try {
    return Thread{std::forward<Work>(work)};
  } catch (std::system_error const& error) {
    throw_no_thread(purpose, error.code());
  }
}

}  // namespace unimem::detail
