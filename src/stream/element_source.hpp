#pragma once

#include <unimem/stream/element_type.hpp>

#include <string>
#include <string_view>

namespace unimem::detail {

/// The portable source form's name of an element type: "unimem_u8", … (docs/kernels.md).
[[nodiscard]] std::string source_type(ElementType element);

/// `text` with every `$name` replaced by `value`. A name that begins another's is replaced after it.
[[nodiscard]] std::string with_replaced(std::string text, std::string_view name, std::string_view value);

}  // namespace unimem::detail
