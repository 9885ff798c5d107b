#pragma once

#include "device/cuda_standin/control.hpp"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::standin {

/// What goes wrong, how often everything was called, and what is left out. Under the machine's lock.
class Faults {
 public:
  struct Verdict {
    detail::cuda::Result code = detail::cuda::Result::success;
    FaultKind kind = FaultKind::once;
  };

  /// For calls in whatever context.
  static constexpr int any_device = -1;

  /// `nth` from now on, 1 the next. An empty name: any function. With a device, only calls in its context count.
  void plan(std::string_view function, std::size_t nth, detail::cuda::Result code, FaultKind kind,
            int device = any_device);

  /// Reads "function:nth:code[:kind]", separated by commas. False if it cannot be read.
  bool plan_all(std::string_view text);

  /// Counts a call in the context of `device`, or in none, and says what is to become of it.
  [[nodiscard]] Verdict next_call(std::string_view function, int device = any_device);

  [[nodiscard]] std::size_t calls(std::string_view function) const;
  /// Calls of the functions that "any function" means.
  [[nodiscard]] std::size_t all_calls() const { return all_calls_; }
  void reset();

 private:
  struct Planned {
    std::string function;
    std::size_t left;  ///< calls until its turn, its own included
    Verdict verdict;
    int device;
  };

  std::vector<Planned> planned_;
  std::map<std::string, std::size_t, std::less<>> calls_;
  std::size_t all_calls_ = 0;
};

/// The kind that a code has where nobody says it: what the real driver reports late and for good.
[[nodiscard]] FaultKind usual_kind(detail::cuda::Result code, std::string_view function);

}  // namespace unimem::standin
