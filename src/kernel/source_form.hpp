#pragma once

#include <unimem/kernel/kernel_source.hpp>

#include <map>
#include <string>
#include <utility>

namespace unimem::detail {

/// The source form of a kernel: its text, all that it includes in place, and the macros that stand before it.
class SourceForm {
 public:
  SourceForm() = default;
  /// Compiled as it stands, but for a mark of UTF-8 before it.
  explicit SourceForm(std::string text);
  /// Reads what is included. Throws InvalidArgument, naming it, for what a KernelSource cannot have, and what
  /// `included_text` throws.
  explicit SourceForm(KernelSource const& source);

  /// The same with constants, in the place of macros of their names. Throws InvalidArgument for a name that does not
  /// stand in the text, or to which the text gives a value of its own where it is defined, too.
  [[nodiscard]] SourceForm with(KernelConstants const& constants) const;

  /// As a device compiles it; empty without a text.
  [[nodiscard]] std::string whole() const;

 private:
  std::string text_;
  std::map<std::string, std::string, std::less<>> defines_;
  bool fast_math_ = false;
};

}  // namespace unimem::detail
