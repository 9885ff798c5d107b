#include "device/cuda_standin_fixture.hpp"

#include <unistd.h>

// Virtual memory management in the stand-in: addresses and memory apart, and who may touch what.

namespace unimem::standin {
namespace {

using testing::Each;
using testing::ElementsAre;

class CudaStandInMapping : public CudaStandIn {
 protected:
  static constexpr std::size_t page = std::size_t{2} << 20;

  static AllocationProperties on_device(int device, HandleType type = HandleType::none) {
    AllocationProperties properties;
    properties.handle_types = type;
    properties.location = {LocationType::device, device};
    return properties;
  }

  [[nodiscard]] AllocationHandle create(std::size_t bytes, int device = 0, HandleType type = HandleType::none) const {
    AllocationHandle handle = 0;
    auto const properties = on_device(device, type);
    ok(cu.cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
  }

  [[nodiscard]] DevicePointer reserve(std::size_t bytes) const {
    DevicePointer base = 0;
    ok(cu.cuMemAddressReserve(&base, bytes, 0, 0, 0));
    return base;
  }

  void allow(DevicePointer at, std::size_t bytes, int device = 0, AccessFlags flags = AccessFlags::read_write) const {
    AccessDescription const access{{LocationType::device, device}, flags};
    ok(cu.cuMemSetAccess(at, bytes, &access, 1));
  }
};

TEST_F(CudaStandInMapping, RefusesWhatDoesNotFit) {
  AllocationHandle handle = 0;
  DevicePointer base = 0;
  auto const properties = on_device(0), nowhere = on_device(2);
  EXPECT_EQ(cu.cuMemCreate(&handle, page + 1, &properties, 0), Result::invalid_value);
  EXPECT_EQ(cu.cuMemCreate(&handle, page, &nowhere, 0), Result::invalid_device);
  EXPECT_EQ(cu.cuMemCreate(&handle, capacity + page, &properties, 0), Result::out_of_memory);
  EXPECT_EQ(cu.cuMemAddressReserve(&base, page - 1, 0, 0, 0), Result::invalid_value);
  base = reserve(2 * page);
  handle = create(page);
  EXPECT_EQ(cu.cuMemMap(base + 2 * page, page, 0, handle, 0), Result::invalid_value);  // outside
  EXPECT_EQ(cu.cuMemMap(base, 2 * page, 0, handle, 0), Result::invalid_value);         // more than there is
  EXPECT_EQ(cu.cuMemMap(base + 1, page, 0, handle, 0), Result::invalid_value);
  EXPECT_EQ(cu.cuMemMap(base, page, page, handle, 0), Result::invalid_value);
  EXPECT_EQ(cu.cuMemMap(base, page, 0, handle + 1, 0), Result::invalid_value);
  ok(cu.cuMemMap(base, page, 0, handle, 0));
  EXPECT_EQ(cu.cuMemMap(base, page, 0, handle, 0), Result::invalid_value);  // taken
  EXPECT_EQ(cu.cuMemAddressFree(base, 2 * page), Result::invalid_value);    // mapped
  EXPECT_EQ(cu.cuMemUnmap(base, 2 * page), Result::invalid_value);          // half of it is not
  EXPECT_EQ(cu.cuMemUnmap(base, page / 2), Result::invalid_value);          // cuts
  EXPECT_EQ(cu.cuMemFree(base), Result::invalid_value);
  AccessDescription const access{{LocationType::device, 0}, AccessFlags::read_write};
  EXPECT_EQ(cu.cuMemSetAccess(base, 2 * page, &access, 1), Result::invalid_value);
  ok(cu.cuMemUnmap(base, page));
  EXPECT_EQ(cu.cuMemAddressFree(base, page), Result::invalid_value);
  ok(cu.cuMemAddressFree(base, 2 * page));
  ok(cu.cuMemRelease(handle));
}

TEST_F(CudaStandInMapping, LetsOnlyThoseWithAccessTouchAMapping) {
  auto const base = reserve(page);
  auto const handle = create(page, 1);  // of device 1, used from device 0
  ok(cu.cuMemMap(base, page, 0, handle, 0));
  allow(base, page, 0, AccessFlags::read);
  EXPECT_THAT(read(base, 100), Each(0xCD));
  ok(cu.cuMemsetD8Async(base, 1, 1, nullptr));  // reading is not writing
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  {
    Current const other{contexts[1]};
    ok(cu.cuMemsetD8Async(base, 1, 1, nullptr));  // not even its own device, unless it is said
    EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  }
  ok(cu.cuMemUnmap(base, page));
  ok(cu.cuMemRelease(handle));
  ok(cu.cuMemAddressFree(base, page));
}

TEST_F(CudaStandInMapping, NotesAnUnmapUnderWorkThatIsQueued) {
  auto const base = reserve(page);
  auto const handle = create(page);
  ok(cu.cuMemMap(base, page, 0, handle, 0));
  allow(base, page);
  control().hold(true);
  ok(cu.cuMemsetD8Async(base + 100, 1, 1, nullptr));
  ok(cu.cuMemUnmap(base, page));
  control().hold(false);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), Result::illegal_address);
  ok(cu.cuMemRelease(handle));
  ok(cu.cuMemAddressFree(base, page));
  expected_violations = ElementsAre("cuMemUnmap of memory that cuMemsetD8Async still uses");
}

}  // namespace
}  // namespace unimem::standin
