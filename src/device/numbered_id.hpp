#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace unimem::detail {

/// "cuda:0": a backend's device by its number, from 0.
[[nodiscard]] std::string numbered_id(std::string_view backend, std::size_t index);

/// The same with the options it is opened with, "cuda:0,profile=1". Throws NotFound unless it is among the `count`
/// there are.
[[nodiscard]] std::string numbered_id(std::string_view backend, std::size_t index, std::string_view options,
                                      std::size_t count);

}  // namespace unimem::detail
