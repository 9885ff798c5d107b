#pragma once

#include <unimem/core/detail/environment.hpp>

namespace unimem::detail {

/// What `UNIMEM_CHECK` asks for: 0 nothing, 1 reports of host writes that were not declared, 2 checked launches as
/// well. Read once. Throws InvalidArgument for a value that is neither 2 nor a switch.
[[nodiscard]] inline int check_level() {
  static int const level = [] {
    if (environment("UNIMEM_CHECK") == "2") return 2;
    return environment_flag("UNIMEM_CHECK", false, "0, 1 or 2") ? 1 : 0;
  }();
  return level;
}

}  // namespace unimem::detail
