#pragma once

#include <cstddef>

namespace unimem {

inline constexpr std::size_t KiB = 1024;
inline constexpr std::size_t MiB = 1024 * KiB;
inline constexpr std::size_t GiB = 1024 * MiB;

}  // namespace unimem
