#include <unimem/pool/cuda_resource.hpp>  // first: it needs none of CCCL's

#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <unimem/core/error.hpp>
#include <unimem/device/cuda.hpp>

#include "core/sizes.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda_fixture.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

// CudaResource against CCCL's own concepts, by the names of the generation it is compiled with, and on streams that its
// user makes.

namespace unimem {
namespace {

using OnDevice = CudaResource<cuda::mr::device_accessible>;
using Pinned = CudaResource<cuda::mr::device_accessible, cuda::mr::host_accessible>;

#if CCCL_MAJOR_VERSION >= 3
static_assert(cuda::mr::synchronous_resource<OnDevice> && cuda::mr::resource<OnDevice>);
static_assert(cuda::mr::resource_with<OnDevice, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<Pinned, cuda::mr::device_accessible, cuda::mr::host_accessible>);
static_assert(!cuda::mr::synchronous_resource_with<OnDevice, cuda::mr::host_accessible>);
#else
static_assert(cuda::mr::resource<OnDevice> && cuda::mr::async_resource<OnDevice>);
static_assert(cuda::mr::async_resource_with<OnDevice, cuda::mr::device_accessible>);
static_assert(cuda::mr::async_resource_with<Pinned, cuda::mr::device_accessible, cuda::mr::host_accessible>);
static_assert(!cuda::mr::resource_with<OnDevice, cuda::mr::host_accessible>);
#endif
static_assert(std::is_copy_constructible_v<OnDevice> && std::is_nothrow_move_constructible_v<OnDevice>);

using detail::cuda::Result;

/// The driver as a user's own code reaches it.
detail::cuda::Driver const& driver() {
  static auto const loaded = detail::cuda::load_driver();
  return loaded.driver;
}

/// A stream that the user makes, uses and destroys.
class OwnStream {
 public:
  explicit OwnStream(Device& gpu) : queue_(gpu.create_queue()) {
    in_context([this] { EXPECT_EQ(driver().cuStreamCreate(&stream_, 1), Result::success); });
  }
  OwnStream(OwnStream const&) = delete;
  OwnStream& operator=(OwnStream const&) = delete;
  ~OwnStream() {
    if (stream_ != nullptr) destroy();
  }

  [[nodiscard]] cuda::stream_ref ref() const { return cuda::stream_ref{reinterpret_cast<cudaStream_t>(stream_)}; }
  void destroy() {
    in_context([this] { EXPECT_EQ(driver().cuStreamDestroy(stream_), Result::success); });
    stream_ = nullptr;
  }
  /// Work of the user's own.
  void set(void* address, unsigned char value, std::size_t bytes) {
    in_context([&] {
      EXPECT_EQ(driver().cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(address), value, bytes, stream_),
                Result::success);
    });
  }
  void synchronize() {
    in_context([this] { EXPECT_EQ(driver().cuStreamSynchronize(stream_), Result::success); });
  }
  [[nodiscard]] bool busy() {
    bool result = false;
    in_context([&] { result = driver().cuStreamQuery(stream_) == Result::not_ready; });
    return result;
  }

 private:
  void in_context(std::function<void()> const& call) {
    queue_.run_native([&](void*) { call(); }).wait();
  }

  Queue queue_;
  detail::cuda::Stream stream_ = nullptr;
};

class CcclResource : public OnStandIn {
 protected:
  [[nodiscard]] std::vector<std::byte> read(void const* address, std::size_t bytes) {
    std::vector<std::byte> result(bytes);
    gpu.default_queue().download(result.data(), {reinterpret_cast<std::uintptr_t>(address), 0, bytes}, bytes).wait();
    return result;
  }

  Device& gpu = device(first_gpu());
  MemoryPool pool{gpu, Location::device};
  OnDevice resource{pool, Name("cccl")};
};

TEST_F(CcclResource, ServesWhoKnowsItByReferenceAlone) {
#if CCCL_MAJOR_VERSION >= 3
  cuda::mr::synchronous_resource_ref<cuda::mr::device_accessible> ref{resource};
  auto* const address = ref.allocate_sync(1000, 256);
  EXPECT_EQ(resource.statistics().live_bytes, 1000U);
  ref.deallocate_sync(address, 1000, 256);
#else
  cuda::mr::resource_ref<cuda::mr::device_accessible> ref{resource};
  auto* const address = ref.allocate(1000, 256);
  EXPECT_EQ(resource.statistics().live_bytes, 1000U);
  ref.deallocate(address, 1000, 256);
#endif
  EXPECT_NE(address, nullptr);
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
}

TEST_F(CcclResource, HandsABlockOnInStreamOrder) {
  OwnStream stream{gpu};
  auto* const first = resource.allocate(stream.ref(), MiB, 256);
  auto held_by = adopt_stream(gpu, stream.ref().get());
  std::optional<Gate> gate{held_by};
  stream.set(first, 1, MiB);
  resource.deallocate(stream.ref(), first, MiB, 256);
  auto* const second = resource.allocate(stream.ref(), MiB, 256);
  EXPECT_EQ(second, first);
  EXPECT_TRUE(stream.busy()) << "nobody has waited";
  stream.set(second, 2, MiB / 2);
  gate.reset();
  stream.synchronize();
  auto expected = std::vector<std::byte>(MiB, std::byte{2});
  std::fill_n(expected.begin() + MiB / 2, MiB / 2, std::byte{1});
  EXPECT_EQ(read(second, MiB), expected);
  resource.deallocate(stream.ref(), second, MiB, 256);
}

TEST_F(CcclResource, MakesAnotherStreamWaitAndNotTheHost) {
  pool.set_max_bytes(MiB);  // there is one block to be had
  OwnStream one{gpu}, other{gpu};
  auto* const first = resource.allocate(one.ref(), MiB, 256);
  auto held_by = adopt_stream(gpu, one.ref().get());
  std::optional<Gate> gate{held_by};
  one.set(first, 1, MiB);
  resource.deallocate(one.ref(), first, MiB, 256);
  auto* const second = resource.allocate(other.ref(), MiB, 256);
  EXPECT_EQ(second, first);
  other.set(second, 2, MiB);  // the user's own, behind whatever the resource has put there
  EXPECT_TRUE(one.busy());
  EXPECT_TRUE(other.busy());
  gate.reset();
  other.synchronize();
  EXPECT_EQ(read(second, MiB), std::vector<std::byte>(MiB, std::byte{2}));
  resource.deallocate(other.ref(), second, MiB, 256);
}

TEST_F(CcclResource, WithoutAStreamTheBlockIsReady) {
  pool.set_max_bytes(MiB);
  OwnStream stream{gpu};
  auto* const first = resource.allocate(stream.ref(), MiB, 256);
  stream.set(first, 1, MiB);
  resource.deallocate(stream.ref(), first, MiB, 256);
  auto* const second = resource.allocate_sync(MiB, 256);
  EXPECT_EQ(second, first);
  EXPECT_FALSE(stream.busy());
  resource.deallocate_sync(second, MiB, 256);
}

TEST_F(CcclResource, ServesTheNamesOfBothGenerations) {
  OwnStream stream{gpu};
  auto* const address = resource.allocate_async(1000, 256, stream.ref());
  resource.deallocate(stream.ref(), address, 1000, 256);
  auto* const again = resource.allocate_async(1000, stream.ref());
  EXPECT_EQ(again, address);
  resource.deallocate_async(again, 1000, stream.ref());
  auto* const last = resource.allocate(stream.ref(), 1000);
  resource.deallocate_async(last, 1000, alignof(std::max_align_t), stream.ref());
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
}

// A bug of peers: a stream destroyed before its blocks return.
TEST_F(CcclResource, BlocksMayOutliveTheirStream) {
  OwnStream stream{gpu}, another{gpu};
  auto* const first = resource.allocate(stream.ref(), MiB, 256);
  auto* const second = resource.allocate(stream.ref(), MiB, 256);
  stream.set(first, 1, MiB);
  stream.set(second, 1, MiB);
  resource.deallocate(stream.ref(), first, MiB, 256);
  stream.synchronize();
  resource.forget_stream(stream.ref());
  stream.destroy();
  resource.deallocate_sync(second, MiB, 256);
  std::vector<void*> taken;
  for (int i = 0; i < 2; ++i) {
    auto* const again = resource.allocate(another.ref(), MiB, 256);
    EXPECT_TRUE(again == first || again == second);
    another.set(again, 3, MiB);
    another.synchronize();
    EXPECT_EQ(read(again, MiB), std::vector<std::byte>(MiB, std::byte{3}));
    taken.push_back(again);
  }
  EXPECT_NE(taken[0], taken[1]);
  EXPECT_EQ(pool.statistics().pool_misses, 2U);
  for (auto* const again : taken) resource.deallocate(another.ref(), again, MiB, 256);
}

TEST_F(CcclResource, PinnedMemoryIsOrderedByStreams) {
  MemoryPool pinned{device("cpu"), Location::pinned};
  Pinned on_host{pinned, gpu};
  OwnStream stream{gpu};
  auto* const address = on_host.allocate(stream.ref(), 1000, 16);
  std::fill_n(static_cast<std::byte*>(address), 1000, std::byte{4});
  on_host.deallocate(stream.ref(), address, 1000, 16);
  EXPECT_EQ(on_host.allocate(stream.ref(), 1000, 16), address);
  on_host.deallocate(stream.ref(), address, 1000, 16);
  EXPECT_EQ(on_host.statistics().refused_deallocations, 0U);
}

TEST_F(CcclResource, AWrongReturnIsReported) {
  OwnStream stream{gpu};
  auto* const address = resource.allocate(stream.ref(), 1000, 256);
  ::testing::internal::CaptureStderr();
  resource.deallocate(stream.ref(), address, 999, 256);
  resource.deallocate(stream.ref(), address, 1000, 256);
  resource.deallocate(stream.ref(), address, 1000, 256);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::AllOf(::testing::HasSubstr("CudaResource 'cccl' on cuda:0 device"),
                               ::testing::HasSubstr("with another size"), ::testing::HasSubstr("given back already")));
  EXPECT_EQ(resource.statistics().refused_deallocations, 2U);
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
}

}  // namespace
}  // namespace unimem
