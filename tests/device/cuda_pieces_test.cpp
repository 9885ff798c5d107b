#include "device/cuda/cuda_device.hpp"
#include "device/cuda/piece_mover.hpp"

#include <unimem/device/cuda.hpp>

#include "core/sizes.hpp"
#include "device/cuda_fixture.hpp"
#include "device/gate.hpp"
#include "device/pieces.hpp"

#include <memory>
#include <optional>

// Which way many pieces go on CUDA, how many calls of the driver that takes, and what becomes of them when one fails.

namespace unimem {
namespace {

using detail::Moves;
using detail::cuda::CudaDevice;
using detail::cuda::DeviceAttribute;
using detail::cuda::DevicePointer;
using detail::cuda::Driver;
using detail::cuda::Hardware;
using detail::cuda::PieceLoad;
using detail::cuda::PieceWay;
using detail::cuda::Result;
using detail::cuda::way_of_pieces;

constexpr std::size_t page = 4 * KiB;

TEST(PieceWays, SuitThePieces) {
  using By = PieceWay::By;
  struct Case {
    PieceLoad load;
    By by, otherwise;
  };
  for (auto const& [load, by, otherwise] : {
           Case{{.count = 1000, .bytes = 1000 * page, .driver_batches = true}, By::kernel, By::batch},
           Case{{.count = 1000, .bytes = 1000 * page}, By::kernel, By::single_copies},
           Case{{.count = 63, .bytes = 63 * page, .driver_batches = true}, By::batch, By::batch},
           Case{{.count = 63, .bytes = 63 * page}, By::single_copies, By::single_copies},
           Case{{.count = 1000, .bytes = 1000 * 28 * KiB, .driver_batches = true}, By::batch, By::batch},
           Case{{.count = 1000, .bytes = 1000 * 28 * KiB - 1, .driver_batches = true}, By::kernel, By::batch},
           Case{{.count = 1000, .bytes = 1000 * page, .moves = Moves::download, .driver_batches = true},
                By::batch,
                By::batch},
           Case{{.count = 1000, .bytes = 1000 * page, .moves = Moves::download}, By::kernel, By::single_copies},
           Case{{.count = 1000, .bytes = 1000 * page, .moves = Moves::copy, .driver_batches = true},
                By::kernel,
                By::batch},
           Case{{.count = 1000, .bytes = 1000 * page, .rectangle = true, .driver_batches = true},
                By::rectangle,
                By::rectangle},
           Case{{.count = 1000, .bytes = 1000 * 64, .rectangle = true, .driver_batches = true}, By::kernel, By::batch},
           Case{{.count = 10, .bytes = 640, .rectangle = true}, By::rectangle, By::rectangle},
           Case{{.count = 1000, .bytes = 1000 * page, .pageable = true, .driver_batches = true},
                By::single_copies,
                By::single_copies},
           Case{{.count = 1000, .bytes = 1000 * 64, .pageable = true, .rectangle = true}, By::rectangle, By::rectangle},
       }) {
    SCOPED_TRACE(::testing::Message() << load.count << " pieces of " << load.bytes / load.count);
    auto const way = way_of_pieces(load);
    EXPECT_EQ(way.by, by);
    EXPECT_EQ(way.otherwise, otherwise);
  }
}

std::size_t calls(char const* function) {
  return standin_control().calls(function);
}

/// All calls that move bytes or start a kernel.
std::size_t commands() {
  std::size_t all = 0;
  for (auto const* const name : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync",
                                 "cuMemcpyBatchAsync", "cuLaunchKernel"}) {
    all += calls(name);
  }
  return all;
}

class CudaPieces : public OnStandIn {
 protected:
  static constexpr std::size_t count = 1000, room = count * 2 * page;

  /// A device of its own over the driver with `change` made to its table, and to what the GPU says of itself.
  static Device& changed(std::string id, std::function<void(Driver&)> const& change) {
    static auto& kept = *new std::vector<std::unique_ptr<Device>>;  // as long as the process, as devices live
    auto& loaded = *new detail::cuda::LoadedDriver(detail::cuda::load_driver());
    change(loaded.driver);
    auto hardware = detail::cuda::survey(loaded.driver, loaded.version).hardware.front();
    kept.push_back(std::make_unique<CudaDevice>(std::move(id), std::move(hardware), detail::cuda::CudaOptions{}));
    return *kept.back();
  }

  /// A thousand scattered pages, no two equally far apart.
  static std::vector<CopyPiece> pages() {
    std::vector<CopyPiece> pieces;
    for (std::size_t i = 0; i < count; ++i) {
      auto const at = i * 2 * page + i % 16 * 16;
      pieces.push_back({at, at, page});
    }
    return pieces;
  }

  /// Sends `pieces` up and back again and looks at every byte.
  void expect_all_there(Device& on, std::vector<CopyPiece> const& pieces, char const* up, char const* down) {
    Allocated const there{on, room};
    auto queue = on.create_queue();
    queue.fill(there.memory(), repeated(1, 0)).wait();
    auto const news = noise(room, 1);
    std::ranges::copy(news, host());
    // What is compiled or made once is not counted.
    queue.upload(there.memory(), host(), pieces).wait();
    queue.fill(there.memory(), repeated(1, 0)).wait();
    auto before = commands(), wanted = calls(up);
    auto const events = calls("cuEventRecord");
    queue.upload(there.memory(), host(), pieces).wait();
    EXPECT_EQ(commands() - before, 1U) << "one command up";
    EXPECT_EQ(calls(up) - wanted, 1U) << up;
    EXPECT_EQ(calls("cuEventRecord") - events, 1U);
    Bytes back(room);
    queue.download(back.data(), there.memory(), room).wait();
    EXPECT_TRUE(back == after(Bytes(room), news, pieces)) << "what is on the device";

    queue.upload(there.memory(), news.data(), room).wait();
    std::fill_n(host(), room, std::byte{});
    before = commands(), wanted = calls(down);
    queue.download(host(), there.memory(), pieces).wait();
    EXPECT_EQ(commands() - before, 1U) << "one command down";
    EXPECT_EQ(calls(down) - wanted, 1U) << down;
    EXPECT_TRUE(std::ranges::equal(std::span{host(), room}, after(Bytes(room), news, pieces))) << "what is back";
  }

  [[nodiscard]] std::byte* host() const { return reinterpret_cast<std::byte*>(pinned.memory().object); }

  Device& gpu = device("cuda:0");
  Allocated pinned{device("cpu"), room, Location::pinned};
};

TEST_F(CudaPieces, AThousandPagesAreOneCommand) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  expect_all_there(gpu, pages(), "cuLaunchKernel", "cuMemcpyBatchAsync");
}

TEST_F(CudaPieces, WhatLiesEvenlyIsARectangle) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  expect_all_there(gpu, rows(count, page, {8, 8, 0}, 2 * page, 2 * page), "cuMemcpy2DAsync", "cuMemcpy2DAsync");
}

TEST_F(CudaPieces, WithoutBatchesTheKernelMovesThem) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto& older = changed("cuda:0,older", [](Driver& driver) { driver.cuMemcpyBatchAsync = nullptr; });
  expect_all_there(older, pages(), "cuLaunchKernel", "cuLaunchKernel");
}

TEST_F(CudaPieces, KernelsReachWriteCombinedMemoryByItsOwnAddress) {
  auto& combining = device(first_gpu("write_combined=1"));
  Allocated const pinned{combining, room, Location::pinned}, there{combining, room};
  auto* const memory = reinterpret_cast<std::byte*>(pinned.memory().object);
  auto queue = combining.create_queue();
  queue.fill(there.memory(), repeated(1, 0)).wait();
  auto const news = noise(room, 1);
  std::ranges::copy(news, memory);
  auto const launches = on_hardware ? 0 : calls("cuLaunchKernel");
  queue.upload(there.memory(), memory, pages()).wait();
  if (!on_hardware) {
    EXPECT_EQ(calls("cuLaunchKernel") - launches, 1U);
  }
  Bytes back(room);
  queue.download(back.data(), there.memory(), room).wait();
  EXPECT_TRUE(back == after(Bytes(room), news, pages()));
  auto& older = changed("cuda:0,older", [](Driver& driver) { driver.cuMemcpyBatchAsync = nullptr; });
  auto down = older.create_queue();
  std::fill_n(memory, room, std::byte{});
  down.download(memory, there.memory(), pages()).wait();
  EXPECT_TRUE(std::ranges::equal(std::span{memory, room}, after(Bytes(room), news, pages())));
}

TEST_F(CudaPieces, WhatKernelsDoNotReachGoesAsTheDriverSees) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto& unseen = changed("cuda:0,unseen", [](Driver& driver) {
    driver.cuMemHostGetDevicePointer = [](DevicePointer*, void*, unsigned) { return Result::invalid_value; };
  });
  expect_all_there(unseen, pages(), "cuMemcpyBatchAsync", "cuMemcpyBatchAsync");
}

TEST_F(CudaPieces, RowsWithinAGpuGoHoweverFarApartTheyAre) {
  constexpr std::size_t width = 1000, number = 50;
  for (auto const pitch : {std::size_t{1536}, std::size_t{1501}}) {  // the driver takes one, and may refuse the other
    Allocated const from{gpu, number * pitch}, to{gpu, number * pitch};
    auto queue = gpu.create_queue();
    auto const news = noise(number * pitch, 3);
    queue.upload(from.memory(), news.data(), news.size());
    queue.fill(to.memory(), repeated(1, 0));
    std::vector<CopyPiece> pieces;
    for (std::size_t row = 0; row < number; ++row) pieces.push_back({row * pitch, row * pitch, width});
    auto const counted = gpu.transfers();
    queue.copy(to.memory(), from.memory(), pieces).wait();
    EXPECT_EQ(gpu.transfers().since(counted).device_to_device_bytes, number * width);
    Bytes back(number * pitch);
    queue.download(back.data(), to.memory(), back.size()).wait();
    EXPECT_TRUE(back == after(Bytes(back.size()), news, pieces)) << pitch;
  }
}

TEST_F(CudaPieces, BatchesAreOfALimitedSize) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  constexpr std::size_t number = 10'000, each = 16, stride = 48;
  standin_control().set_attribute(0, DeviceAttribute::can_use_host_pointer_for_registered_mem, 0);  // no kernel
  auto& batching = changed("cuda:0,batching", [](Driver&) {});
  Allocated const pinned{device("cpu"), number * stride, Location::pinned}, there{batching, number * stride};
  auto* const memory = reinterpret_cast<std::byte*>(pinned.memory().object);
  auto const news = noise(number * stride, 5);
  std::ranges::copy(news, memory);
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < number; ++i) pieces.push_back({i * stride + i % 7, i * stride + i % 5, each});
  auto queue = batching.create_queue();
  queue.fill(there.memory(), repeated(1, 0)).wait();
  auto const before = calls("cuMemcpyBatchAsync"), events = calls("cuEventRecord");
  queue.upload(there.memory(), memory, pieces).wait();
  EXPECT_EQ(calls("cuMemcpyBatchAsync") - before, 3U);
  EXPECT_EQ(calls("cuEventRecord") - events, 1U) << "of one ticket";
  Bytes back(number * stride);
  queue.download(back.data(), there.memory(), back.size()).wait();
  EXPECT_TRUE(back == after(Bytes(back.size()), news, pieces));
  standin_control().fail("cuMemcpyBatchAsync", 2, Result::invalid_value, standin::FaultKind::once);
  EXPECT_NE(queue.upload(there.memory(), memory, pieces).wait_for_error(), nullptr) << "half of it had been given";
  standin_control().fail("cuMemcpyBatchAsync", 1, Result::invalid_value, standin::FaultKind::once);
  EXPECT_THROW(queue.upload(there.memory(), memory, pieces), DeviceError);
}

TEST_F(CudaPieces, BatchesCanBeSwitchedOff) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto& without = device(first_gpu("batches=0"));
  Allocated const there{without, room};
  auto queue = without.create_queue();
  queue.fill(there.memory(), repeated(1, 0)).wait();
  auto const news = noise(room, 1);
  std::ranges::copy(news, host());
  auto const few = std::vector<CopyPiece>{{0, 0, page}, {3 * page, 2 * page, 100}, {9 * page, 5 * page, 7}};
  auto const before = calls("cuMemcpyBatchAsync");
  queue.upload(there.memory(), host(), few).wait();
  EXPECT_EQ(calls("cuMemcpyBatchAsync"), before);
  Bytes back(room);
  queue.download(back.data(), there.memory(), room).wait();
  EXPECT_TRUE(back == after(Bytes(room), news, few));
}

TEST_F(CudaPieces, WithoutPinnedAccessTheDriverMovesThem) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  standin_control().set_attribute(0, DeviceAttribute::can_use_host_pointer_for_registered_mem, 0);
  auto& remote = changed("cuda:0,remote", [](Driver&) {});
  expect_all_there(remote, pages(), "cuMemcpyBatchAsync", "cuMemcpyBatchAsync");
}

TEST_F(CudaPieces, DistantRowsAreNoRectangle) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  standin_control().set_attribute(0, DeviceAttribute::max_pitch, 2 * page - 1);
  auto& narrow = changed("cuda:0,narrow", [](Driver&) {});
  expect_all_there(narrow, rows(count, page, {8, 8, 0}, 2 * page, 2 * page), "cuLaunchKernel", "cuMemcpyBatchAsync");
}

TEST_F(CudaPieces, WithoutEitherTheyAreSingleCopies) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  standin_control().set_attribute(0, DeviceAttribute::can_use_host_pointer_for_registered_mem, 0);
  auto& old = changed("cuda:0,old", [](Driver& driver) { driver.cuMemcpyBatchAsync = nullptr; });
  Allocated const there{old, room};
  auto queue = old.create_queue();
  queue.fill(there.memory(), repeated(1, 0)).wait();
  auto const news = noise(room, 1);
  std::ranges::copy(news, host());
  auto const before = calls("cuMemcpyHtoDAsync"), events = calls("cuEventRecord");
  queue.upload(there.memory(), host(), pages()).wait();
  EXPECT_EQ(calls("cuMemcpyHtoDAsync") - before, count);
  EXPECT_EQ(calls("cuEventRecord") - events, 1U);
  Bytes back(room);
  queue.download(back.data(), there.memory(), room).wait();
  EXPECT_TRUE(back == after(Bytes(room), news, pages()));
  // One of them refused: the copies before it are on their way, so that the work has a ticket, and has failed.
  standin_control().fail("cuMemcpyHtoDAsync", 500, Result::invalid_value, standin::FaultKind::once);
  auto const counted = old.transfers();
  auto const broken = queue.upload(there.memory(), host(), pages());
  EXPECT_NE(message_of(broken.wait_for_error()).find("cuMemcpyHtoDAsync"), std::string::npos);
  EXPECT_EQ(old.transfers().host_to_device_copies, counted.host_to_device_copies) << "nothing is counted of it";
  standin_control().fail("cuMemcpyHtoDAsync", 1, Result::invalid_value, standin::FaultKind::once);
  auto const last = queue.record();
  EXPECT_THROW(queue.upload(there.memory(), host(), pages()), DeviceError);
  EXPECT_EQ(queue.record(), last) << "nothing of it was begun";
}

TEST_F(CudaPieces, OnADefaultStreamNothingIsBatched) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto queue = adopt_stream(gpu, nullptr);
  Allocated const there{gpu, room};
  queue.fill(there.memory(), repeated(1, 0));
  auto const news = noise(room, 1);
  std::ranges::copy(news, host());
  auto const few = std::vector<CopyPiece>{{0, 0, page}, {3 * page, 2 * page, 100}, {9 * page, 5 * page, 7}};
  queue.upload(there.memory(), host(), few).wait();
  Bytes back(room);
  queue.download(back.data(), there.memory(), room).wait();
  EXPECT_TRUE(back == after(Bytes(room), news, few));
  EXPECT_EQ(calls("cuMemcpyBatchAsync"), 0U);
}

TEST_F(CudaPieces, ARefusedWayTakesNoTicket) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  Allocated const there{gpu, room};
  auto queue = gpu.create_queue();
  queue.upload(there.memory(), host(), pages()).wait();  // the kernel stands
  struct Case {
    char const* call;
    std::vector<CopyPiece> pieces;
  };
  auto few = pages();
  few.resize(10);
  few.erase(few.begin() + 5);  // or they would be a rectangle
  for (auto const& [call, pieces] : {Case{"cuLaunchKernel", pages()}, Case{"cuMemcpyBatchAsync", few},
                                     Case{"cuMemcpy2DAsync", rows(10, page, {0, 0, 0}, 2 * page, 2 * page)}}) {
    SCOPED_TRACE(call);
    auto const last = queue.record();
    auto const counted = gpu.transfers();
    standin_control().fail(call, 1, Result::out_of_memory, standin::FaultKind::once);
    EXPECT_THROW(queue.upload(there.memory(), host(), pieces), DeviceError);
    EXPECT_EQ(queue.record(), last);
    EXPECT_EQ(gpu.transfers(), counted);
    queue.upload(there.memory(), host(), pieces).wait();
    EXPECT_EQ(gpu.transfers().since(counted).host_to_device_copies, pieces.size());
  }
}

TEST_F(CudaPieces, ManyAreSeveralLaunchesOfOneTicket) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  constexpr std::size_t many = 9000, apart = 64;
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < many; ++i) pieces.push_back({i * apart + i % 3, i * apart, 40 + i % 20});
  Allocated const there{gpu, room};
  auto queue = gpu.create_queue();
  queue.fill(there.memory(), repeated(1, 0)).wait();
  auto const news = noise(room, 1);
  std::ranges::copy(news, host());
  auto const before = calls("cuLaunchKernel");
  auto const last = queue.record().ticket();
  auto const sent = queue.upload(there.memory(), host(), pieces);
  EXPECT_EQ(sent.ticket(), last + 1);
  EXPECT_EQ(calls("cuLaunchKernel") - before, 4U);
  Bytes back(room);
  queue.download(back.data(), there.memory(), room).wait();
  EXPECT_TRUE(back == after(Bytes(room), news, pieces));
  // The second launch refused: the first is under way.
  standin_control().fail("cuLaunchKernel", 2, Result::out_of_memory, standin::FaultKind::once);
  auto const broken = queue.upload(there.memory(), host(), pieces);
  EXPECT_NE(broken.wait_for_error(), nullptr);
}

TEST_F(CudaPieces, LargePiecesAreDividedAmongWarps) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  // On average they are small, and one of them is most of it.
  std::vector<CopyPiece> pieces{{0, 0, 1'000'003}};
  for (std::size_t i = 0; i < 100; ++i) pieces.push_back({1'100'000 + i * 50 + i % 2, 1'100'000 + i * 50, 31});
  expect_all_there(gpu, pieces, "cuLaunchKernel", "cuMemcpyBatchAsync");
}

TEST_F(CudaPieces, TablesServeAgainWhenTheirWorkHasEnded) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  Allocated const there{gpu, room};
  auto queue = gpu.create_queue();
  static_cast<void>(queue.native<void*>());  // as it is known to others, the work waits in the driver
  queue.upload(there.memory(), host(), pages()).wait();
  auto const pinned_before = standin_control().live().pinned;
  for (int i = 0; i < 20; ++i) queue.upload(there.memory(), host(), pages()).wait();
  EXPECT_EQ(standin_control().live().pinned, pinned_before);
  // While they are held up, each has its own.
  std::optional<Gate> gate{queue};
  std::vector<Event> events;
  for (int i = 0; i < 5; ++i) events.push_back(queue.upload(there.memory(), host(), pages()));
  EXPECT_LE(standin_control().live().pinned, pinned_before + 5);
  EXPECT_GT(standin_control().live().pinned, pinned_before);
  gate.reset();
  for (auto const event : events) event.wait();
}

}  // namespace
}  // namespace unimem
