#pragma once

#include "device/source_words.hpp"

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// What a look at a kernel source tells before it is compiled. NVRTC knows the entries it was asked for and no others,
/// so this is how an error can name those there are, and how the form of a source is known where the driver does not
/// tell the names of parameters.
///
/// It reads words outside comments and literals and follows no macro: a kernel whose name a macro makes is not listed,
/// and is compiled all the same.
struct SourceKernels {
  std::vector<std::string> portable;  ///< names after UNIMEM_KERNEL
  std::vector<std::string> plain;     ///< names of __global__ and __kernel functions, templates among them
  bool names_portable_form = false;   ///< the word UNIMEM_KERNEL is there

  /// Whether the kernel `entry`, which may be a template's instance ("f<float>"), has the portable form.
  [[nodiscard]] bool is_portable(std::string_view entry) const;
  [[nodiscard]] bool has(std::string_view entry) const;
  /// All names, as "a, b".
  [[nodiscard]] std::string names() const;
};

[[nodiscard]] SourceKernels kernels_in(std::string_view source);

/// A word and all that follows it; whether it is to be called with the next.
using WordVisitor = std::function<bool(std::string_view word, SourceWords const& after)>;

/// Visits each word of the kernel `entry` and of what is no kernel and may be called by it.
void visit_words(std::string_view source, std::string_view entry, WordVisitor const& visit);

/// The first of `wanted` that stands in the kernel `entry`, or in what is no kernel and may be called by it; empty if
/// none does.
[[nodiscard]] std::string find_word(std::string_view source, std::string_view entry,
                                    std::span<const std::string_view> wanted);

/// One parameter of a portable kernel as its text has it.
struct TextParameter {
  bool is_buffer = false;
  bool is_const = false;  ///< of a buffer
  std::string type;       ///< of a scalar, or of an element
  std::string name;
};

/// The parameters of the portable kernel `entry`; nothing where the text has no such kernel, or a parameter that is
/// neither type nor name.
[[nodiscard]] std::optional<std::vector<TextParameter>> portable_parameters(std::string_view source,
                                                                            std::string_view entry);

}  // namespace unimem::detail
