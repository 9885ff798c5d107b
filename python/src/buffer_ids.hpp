#pragma once

#include <unimem/share/buffer_id.hpp>

#include <string>

namespace unimem::python {

/// The id that a text is, as `to_string` spells it: "00c0ffee15900d1d-42". Throws NotFound for what is none.
[[nodiscard]] BufferId checked_id(std::string const& text);

}  // namespace unimem::python
