#pragma once

#include <string>
#include <vector>

namespace standin {

/// What the system's compiler made of a source.
struct HostImage {
  bool built = false;
  std::string log;                 ///< what the compiler said, as NVRTC would say it: "name(line): error: …"
  std::string elf;                 ///< a shared object
  std::vector<std::string> names;  ///< what it calls each of the expressions
};

/// Compiles CUDA C++ into host code that exports its kernels as kernel_image.hpp says, those among `expressions`.
/// `name` is what messages call the source.
[[nodiscard]] HostImage compile_for_host(std::string const& source, std::string const& name,
                                         std::vector<std::string> const& expressions, bool fuses);

}  // namespace standin
