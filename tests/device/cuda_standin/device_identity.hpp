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

/// The same of one instance of a partitioned GPU, of which there is one in the machine: "MIG-12..." to
/// CUDA_VISIBLE_DEVICES.
[[nodiscard]] std::string spelled_instance_uuid(int instance);
[[nodiscard]] std::string name_of_instance(int instance);

[[nodiscard]] std::string pci_id_of(int physical);

}  // namespace unimem::standin
