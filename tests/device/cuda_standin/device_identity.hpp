#pragma once

#include "device/cuda/declarations.hpp"

#include <string>

namespace unimem::standin {

/// Who a device is, by its number on the machine (and not among the visible ones): that must not change with
/// CUDA_VISIBLE_DEVICES.
[[nodiscard]] detail::cuda::Uuid uuid_of(int physical);

/// The uuid as nvidia-smi and CUDA_VISIBLE_DEVICES spell it: "GPU-756d5354-...".
[[nodiscard]] std::string spelled_uuid(int physical);

[[nodiscard]] std::string name_of(int physical);

[[nodiscard]] std::string pci_id_of(int physical);

}  // namespace unimem::standin
