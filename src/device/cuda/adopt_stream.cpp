#include <unimem/core/error.hpp>
#include <unimem/device/cuda.hpp>

#include "device/cuda/cuda_device.hpp"

#include <string>

namespace unimem {

Queue adopt_stream(Device& device, void* stream) {
  auto* const gpu = dynamic_cast<detail::cuda::CudaDevice*>(&device);
  if (gpu == nullptr) {
    throw UnsupportedOperation("adopt_stream", std::string(device.id()), "it is not a CUDA device");
  }
  return gpu->adopt(static_cast<detail::cuda::Stream>(stream));
}

}  // namespace unimem
