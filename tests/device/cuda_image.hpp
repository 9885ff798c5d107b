#pragma once

#include "device/cuda/kernel_compiler.hpp"
#include "device/cuda_standin/kernel_image.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace unimem::detail::cuda {

/// An image of the stand-in NVRTC as a driver would load it.
class LoadedImage {
 public:
  explicit LoadedImage(std::string_view image) {
    if (!image.starts_with("UMKERNEL") || image.size() < 16) throw std::runtime_error("not an image");
    auto const elf = image.substr(16);
    // Open for as long as the image is loaded: the loader takes two files of one name for one.
    file_ = memfd_create("image", MFD_CLOEXEC);
    if (file_ < 0 || ::write(file_, elf.data(), elf.size()) < 0) throw std::runtime_error("no file in memory");
    handle_ = dlopen(("/proc/self/fd/" + std::to_string(file_)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
  }
  LoadedImage(LoadedImage const&) = delete;
  LoadedImage& operator=(LoadedImage const&) = delete;
  ~LoadedImage() {
    dlclose(handle_);
    close(file_);
  }

  [[nodiscard]] std::span<StandInKernel const> kernels() const {
    auto const* const first = static_cast<StandInKernel const*>(dlsym(handle_, "unimem_standin_kernels"));
    return {first, *static_cast<unsigned const*>(dlsym(handle_, "unimem_standin_kernel_count"))};
  }

  /// The kernel of that name, or null.
  [[nodiscard]] StandInKernel const* find(std::string_view name) const {
    for (auto const& kernel : kernels()) {
      if (kernel.name == name) return &kernel;
    }
    return nullptr;
  }

 private:
  int file_ = -1;
  void* handle_ = nullptr;
};

/// The stand-in NVRTC, which makes such images.
[[nodiscard]] inline LoadedNvrtc standin_nvrtc() {
  setenv("UNIMEM_NVRTC_LIBRARY", UNIMEM_STANDIN_NVRTC, 1);
  auto loaded = load_nvrtc(12040);
  unsetenv("UNIMEM_NVRTC_LIBRARY");
  EXPECT_EQ(loaded.problem, "");
  return loaded;
}

[[nodiscard]] inline KernelCompiler const& standin_compiler() {
  static KernelCompiler const compiler{standin_nvrtc(), 12040, KernelCache{}};
  return compiler;
}

}  // namespace unimem::detail::cuda
