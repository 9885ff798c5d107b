#pragma once

#include <chrono>

namespace unimem::detail {

/// Time by the steady clock since it was made: how long a command took that its own thread carried out.
class Stopwatch {
 public:
  [[nodiscard]] std::chrono::nanoseconds elapsed() const noexcept { return std::chrono::steady_clock::now() - begin_; }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace unimem::detail
