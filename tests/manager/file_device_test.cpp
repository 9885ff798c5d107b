#include "manager/file_device.hpp"

#include "device/gate.hpp"
#include "manager/spill_files.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace unimem::testing {
namespace {

using detail::FileDevice;
using detail::SpillFile;
using detail::SpillFiles;

class FilesAsADevice : public ::testing::Test {
 protected:
  using Bytes = std::array<std::byte, 4096>;

  [[nodiscard]] std::shared_ptr<SpillFile> make() const { return std::make_shared<SpillFile>(files, sizeof(Bytes)); }

  std::shared_ptr<SpillFiles> files = std::make_shared<SpillFiles>(std::filesystem::temp_directory_path().string(), 0);
  Queue& queue = FileDevice::instance().default_queue();
};

TEST_F(FilesAsADevice, WhatIsWrittenIsRead) {
  Bytes written, read;
  written.fill(std::byte{7});
  auto const file = make();
  queue.upload(file->memory(), written.data(), sizeof(Bytes));
  queue.download(read.data(), file->memory(), sizeof(Bytes)).wait();
  EXPECT_EQ(read, written);
}

/// Nothing has to wait, or to find memory, so that it may go.
TEST_F(FilesAsADevice, AFileStaysUntilItsCopiesHaveEnded) {
  Bytes written, read;
  written.fill(std::byte{7});
  auto file = make();
  auto const memory = file->memory();
  std::optional<Gate> gate{std::in_place, queue};
  queue.upload(memory, written.data(), sizeof(Bytes));
  auto const end = queue.download(read.data(), memory, sizeof(Bytes));
  file.reset();
  EXPECT_EQ(files->counts().files, 1U);
  gate.reset();
  end.wait();
  EXPECT_EQ(read, written);
  EXPECT_EQ(files->counts().files, 0U);
}

}  // namespace
}  // namespace unimem::testing
