#include "device/cuda/host_flags.hpp"

namespace unimem::detail::cuda {

std::shared_ptr<HostFlags::Flag> HostFlags::take() {
  return std::make_shared<Flag>(words_.take());
}

}  // namespace unimem::detail::cuda
