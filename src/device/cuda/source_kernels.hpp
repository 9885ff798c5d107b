#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail::cuda {

/// What a look at a kernel source tells before it is compiled. NVRTC knows the entries it was asked for and no others,
/// so this is how an error can name those there are, and how the form of a source is known.
///
/// It reads words outside comments and literals and follows no macro: a kernel whose name a macro makes is not listed,
/// and is compiled all the same.
struct SourceKernels {
  std::vector<std::string> portable;  ///< names after UNIMEM_KERNEL
  std::vector<std::string> plain;     ///< names of __global__ functions, templates among them
  bool names_portable_form = false;   ///< the word UNIMEM_KERNEL is there

  /// Whether the kernel `entry`, which may be a template's instance ("f<float>"), has the portable form.
  [[nodiscard]] bool is_portable(std::string_view entry) const;
  [[nodiscard]] bool has(std::string_view entry) const;
  /// All names, as "a, b".
  [[nodiscard]] std::string names() const;
};

[[nodiscard]] SourceKernels kernels_in(std::string_view source);

}  // namespace unimem::detail::cuda
