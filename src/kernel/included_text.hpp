#pragma once

#include <unimem/kernel/kernel_source.hpp>

#include <string>
#include <string_view>

namespace unimem::detail {

/// The text of a source with the text of each file that it includes in the place of the `#include`, and `#line` around
/// it, so that compilers name the files and lines there were. One form for all compilers: not all take headers, and
/// what looks at a source (`SourceKernels`) must see all of it.
///
/// No condition is evaluated. So `#include` in a branch that is not compiled does no harm: what is wrong with one (no
/// such file, a file that includes itself without a guard, more than 64 files deep) becomes an `#error` in its place,
/// which names the chain of files. `#pragma once` becomes a guard. What stands in angle brackets and is not found is
/// left to the compiler, and so is the name of a macro.
///
/// Reads files, now and not later. Throws InvalidArgument if the text becomes longer than 16 MiB, IoError if a file
/// that is there cannot be read.
[[nodiscard]] std::string included_text(KernelSource const& source);

/// Without the mark of UTF-8 that some editors put before a text, and that no compiler takes.
[[nodiscard]] std::string_view without_mark(std::string_view text);

}  // namespace unimem::detail
