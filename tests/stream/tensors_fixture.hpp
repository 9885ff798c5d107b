#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/tensors.hpp>

#include "core/sizes.hpp"
#include "stream/scratch_folder.hpp"
#include "stream/tensor_files.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::testing {

/// What a call refuses with.
template <class Refusal, class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (Refusal const& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return {};
}

/// Files of tensors, and buffers over them.
class Tensors : public ::testing::Test {
 protected:
  [[nodiscard]] FileOptions options(FileMode mode = FileMode::read) {
    FileOptions made;
    made.mode = mode;
    made.manager = &manager;
    made.device = &sim;
    return made;
  }
  [[nodiscard]] std::string failure(std::filesystem::path const& path) const {
    return refusal<IoError>([&] { static_cast<void>(open_tensors(path)); });
  }
  /// Two tensors of numbers, and one of a byte in front, so that they are not aligned.
  [[nodiscard]] std::filesystem::path model() const {
    return folder.write("model.safetensors", std::string_view(safetensors_file(
                                                 R"({"__metadata__":{"format":"pt"},)"
                                                 R"("flag":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},)"
                                                 R"("layer.0/w":{"dtype":"F32","shape":[2,3],"data_offsets":[1,25]},)"
                                                 R"("b":{"dtype":"I64","shape":[2],"data_offsets":[25,41]}})",
                                                 "\1" + bytes_of(weights) + bytes_of(biases))));
  }

  std::vector<float> const weights{1.5F, -2, 3, 1e30F, 0, 0.25F};
  std::vector<std::int64_t> const biases{-7, 1LL << 62};
  ScratchFolder folder;
  MemoryManager manager;
  Device& sim = make_sim({.memory_bytes = 64 * MiB});
};

}  // namespace unimem::testing
