#pragma once

#include <unimem/device/device.hpp>

#include <string>
#include <vector>

namespace unimem {

/// What drills of the CUDA backend found on the stand-in driver: wrong bytes, what the driver counts, what it notes
/// that a real one would have suffered from. All drills that a GPU survives.
[[nodiscard]] std::vector<std::string> findings();

/// A drill that loses the GPU; empty: nothing was found.
[[nodiscard]] std::string notices_loss(Device& gpu);

/// When a GPU is lost, another pins what comes then.
[[nodiscard]] std::string pins_after_a_loss(Device& first, Device& second);

}  // namespace unimem
