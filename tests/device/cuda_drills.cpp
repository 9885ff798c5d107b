#include "device/cuda_drills.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/cuda.hpp>
#include <unimem/device/discovery.hpp>

#include "device/conformance_fixture.hpp"
#include "device/coroutine_task.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda/nvrtc.hpp"
#include "device/cuda_fixture.hpp"
#include "device/gate.hpp"
#include "device/reserved_pages.hpp"
#include "device/temporary_folder.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using Finding = std::string;

std::string difference(std::string_view what, bool right) {
  return right ? std::string{} : std::string(what);
}

/// At its end, no work is under way in any stream: a mutant may have begun it where no queue waits for it, and memory
/// that was made before this must outlive it.
class QuietEnd {
 public:
  QuietEnd() = default;
  QuietEnd(QuietEnd const&) = delete;
  QuietEnd& operator=(QuietEnd const&) = delete;
  ~QuietEnd() {
    while (standin_control().live().pending != 0) std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
};

/// Copies from pinned memory while the streams are held up, then looks at what arrived.
Finding copies_in_order(Device& gpu) {
  constexpr std::size_t bytes = 100'000;
  auto& control = standin_control();
  Allocated const host{device("cpu"), bytes, Location::pinned};
  auto* const memory = reinterpret_cast<std::byte*>(host.memory().object);
  Allocated const first{gpu, bytes}, second{gpu, bytes};
  QuietEnd const end;
  auto one = gpu.create_queue(), other = gpu.create_queue();
  auto const news = noise(bytes, 1);
  std::ranges::copy(news, memory);
  control.set_latency(2000, 2000);
  control.hold(true);  // however long this thread is kept from looking
  auto const sent = one.upload(first.memory(), memory, bytes);
  bool const early = sent.ready();
  control.hold(false);
  if (early) return "an upload from pinned memory is done before its stream has begun";
  other.wait(sent);
  auto const copied = other.copy(second.memory(), first.memory(), bytes);
  Bytes back(bytes);
  other.download(back.data(), second.memory(), bytes).wait();
  control.set_latency(0, 0);
  one.synchronize();
  return difference("what was copied is not what was sent", back == news && copied.ready());
}

Finding waits_for_the_cpu(Device& gpu) {
  Allocated const there{gpu, 100};
  auto queue = gpu.create_queue();
  std::optional<Gate> gate{queue};
  auto const behind = queue.fill(there.memory(), repeated(1, 7));
  bool early = false;
  for (int look = 0; look < 50 && !early; ++look) {  // time enough to be done, if nothing holds it up
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    early = behind.ready();
  }
  gate.reset();
  behind.wait();
  return difference("work went on before what it waited for", !early);
}

/// Somebody captures a stream of theirs in the driver's default mode.
Finding lives_beside_a_capture(Device& gpu) {
  auto& control = standin_control();
  static auto const loaded = detail::cuda::load_driver();
  auto const& driver = loaded.driver;
  Allocated const there{gpu, 100};
  QuietEnd const end;
  auto queue = gpu.create_queue();
  control.hold(true);
  auto const filled = queue.fill(there.memory(), repeated(1, 7));
  for (std::size_t nth = 1; nth <= 4; ++nth) {
    control.fail("cuEventQuery", nth, detail::cuda::Result::stream_capture_unsupported, standin::FaultKind::once);
  }
  bool const early = filled.ready();
  control.hold(false);
  filled.wait();
  if (early) return "a refusal to say is taken for the end of work";
  detail::cuda::Stream stream = nullptr;
  detail::cuda::Graph graph = nullptr;
  queue.run_native([&](void*) {
    static_cast<void>(driver.cuStreamCreate(&stream, 1));
    static_cast<void>(driver.cuStreamBeginCapture(stream, detail::cuda::CaptureMode::global));
  });
  Allocated const meanwhile{gpu, 100};
  auto result = detail::cuda::Result::success;
  queue.run_native([&](void*) {
    result = driver.cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) static_cast<void>(driver.cuGraphDestroy(graph));
    static_cast<void>(driver.cuStreamDestroy(stream));
  });
  return difference("a capture of the user's was broken", result == detail::cuda::Result::success);
}

/// Goes on when one event has come, and then stands waiting for another, until that is there or nobody believes in it.
Task stands_waiting(Event begins, std::promise<void>& begun, Event awaited, std::atomic<bool> const& given_up) {
  co_await begins;
  begun.set_value();
  while (!awaited.ready() && !given_up) std::this_thread::yield();
}

Finding raises_beside_coroutines(Device& gpu) {
  auto& cpu = device("cpu");
  Allocated const there{gpu, 100};
  QuietEnd const end;
  auto ours = cpu.create_queue(), others = cpu.create_queue();
  auto queue = gpu.create_queue();
  std::optional<Gate> work{ours}, begins{others};
  queue.run_native([](void*) {});  // a stream that others know waits at a word
  queue.wait(ours.record());
  auto const filled = queue.fill(there.memory(), repeated(1, 7));
  std::promise<void> begun;
  std::atomic<bool> given_up = false;
  auto const task = stands_waiting(others.record(), begun, filled, given_up);
  begins.reset();
  begun.get_future().wait();
  work.reset();
  bool there_in_time = false;
  for (int look = 0; look < 3000 && !there_in_time; ++look) {  // long enough for anything but for ever
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    there_in_time = filled.ready();
  }
  given_up = true;
  task.get();
  filled.wait();
  return difference("a stream stands while a coroutine waits for it", there_in_time);
}

/// Streams of the user's that a queue can be made of, and one that it cannot.
Finding adopts_streams(Device& gpu) {
  try {
    static_cast<void>(adopt_stream(gpu, reinterpret_cast<void*>(detail::cuda::per_thread_stream)));
  } catch (InvalidArgument const&) {
    return {};
  }
  return "a queue was made of as many streams as there are threads";
}

/// Blocks of the driver's pool come and go while somebody captures a stream that waits for the default stream.
Finding allocates_beside_a_capture(Device& pooled) {
  static auto const loaded = detail::cuda::load_driver();
  auto const& driver = loaded.driver;
  auto queue = pooled.create_queue();
  detail::cuda::Stream stream = nullptr;
  detail::cuda::Graph graph = nullptr;
  queue.run_native([&](void*) {
    static_cast<void>(driver.cuStreamCreate(&stream, 0));
    static_cast<void>(driver.cuStreamBeginCapture(stream, detail::cuda::CaptureMode::relaxed));
  });
  Finding finding;
  try {
    Allocated const meanwhile{pooled, 100};
  } catch (Error const& error) {
    finding = error.what();
  }
  auto result = detail::cuda::Result::success;
  queue.run_native([&](void*) {
    result = driver.cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) static_cast<void>(driver.cuGraphDestroy(graph));
    static_cast<void>(driver.cuStreamDestroy(stream));
  });
  if (!finding.empty()) return finding;
  return difference("a capture of the user's was broken by a block", result == detail::cuda::Result::success);
}

Finding launches_a_graph(Device& gpu) {
  Allocated const there{gpu, 400};
  QuietEnd const end;
  auto first = gpu.create_queue();
  first.fill(there.memory(), repeated(1, 0)).wait();
  std::array const arguments{memory_argument(there.memory()), scalar_argument(std::uint32_t{1})};
  auto const graph = first.capture({{gpu.compile(add_kernel()), Range{100}, {arguments.begin(), arguments.end()}}});
  {
    std::vector<std::jthread> all;
    for (int i = 0; i < 4; ++i) {
      all.emplace_back([&] {
        auto queue = gpu.create_queue();
        for (int j = 0; j < 25; ++j) queue.run(graph);
        queue.synchronize();
      });
    }
  }
  Bytes back(400);
  first.download(back.data(), there.memory(), 400).wait();
  return difference("a graph ran more or less often than it was launched", back[0] == std::byte{100});
}

Finding copies_between(Device& gpu, Device& other) {
  Allocated const here{gpu, 1000}, there{other, 1000};
  QuietEnd const end;
  other.default_queue().fill(there.memory(), repeated(1, 9)).wait();
  standin_control().fail("cuCtxEnablePeerAccess", 1, detail::cuda::Result::too_many_peers, standin::FaultKind::once);
  auto queue = gpu.create_queue();
  queue.copy(here.memory(), other, there.memory(), 1000).wait();
  return difference("another GPU's bytes did not come", downloaded(gpu, here.memory()) == repeated(1000, 9));
}

/// Pages are mapped though another GPU, which had access to those before, is refused it now.
Finding maps_beside_a_refusal(Device& gpu, Device& other) {
  Allocated const here{other, 100}, there{gpu, 100};
  QuietEnd const end;
  auto queue = other.create_queue();
  queue.copy(here.memory(), gpu, there.memory(), 100).wait();
  auto& source = *gpu.pages();
  Reserved range{source, source.page_bytes()};
  auto const asked = standin_control().calls("cuMemSetAccess");
  standin_control().fail("cuMemSetAccess", 2, detail::cuda::Result::invalid_device, standin::FaultKind::once);
  range.map(0, source.create_pages(source.page_bytes()));
  if (standin_control().calls("cuMemSetAccess") != asked + 2) return "another GPU was not given access";
  Bytes back(100);
  auto own = gpu.create_queue();
  own.fill(range.memory(0, 100), repeated(1, 4));
  own.download(back.data(), range.memory(0, 100), 100).wait();
  return difference("pages do not hold what was written there", back == repeated(100, 4));
}

/// Rows within a GPU, so far apart as the driver need not take.
Finding copies_odd_rows(Device& gpu) {
  constexpr std::size_t pitch = 1501, rows = 20, width = 1000;
  Allocated const from{gpu, rows * pitch}, to{gpu, rows * pitch};
  QuietEnd const end;
  auto const news = noise(rows * pitch, 5);
  auto queue = gpu.create_queue();
  queue.upload(from.memory(), news.data(), news.size());
  queue.fill(to.memory(), repeated(1, 0));
  std::vector<CopyPiece> pieces;
  for (std::size_t row = 0; row < rows; ++row) pieces.push_back({row * pitch, row * pitch, width});
  queue.copy(to.memory(), from.memory(), pieces).wait();
  Bytes expected(rows * pitch);
  for (auto const& piece : pieces) std::copy_n(&news[piece.from], width, &expected[piece.to]);
  return difference("rows are not where they belong", downloaded(gpu, to.memory()) == expected);
}

/// A kernel moves pieces out of write-combined memory.
Finding reaches_combined_memory(Device& combining) {
  constexpr std::size_t count = 100, stride = 1000, length = 300;
  Allocated const pinned{combining, count * stride, Location::pinned}, there{combining, count * stride};
  QuietEnd const end;
  auto* const memory = reinterpret_cast<std::byte*>(pinned.memory().object);
  auto const news = noise(count * stride, 6);
  std::ranges::copy(news, memory);
  auto queue = combining.create_queue();
  queue.fill(there.memory(), repeated(1, 0));
  std::vector<CopyPiece> pieces;
  Bytes expected(count * stride);
  for (std::size_t i = 0; i < count; ++i) {
    pieces.push_back({i * stride + i % 7, i * stride, length});
    std::copy_n(&news[i * stride], length, &expected[i * stride + i % 7]);
  }
  if (auto const failure = queue.upload(there.memory(), memory, pieces).wait_for_error()) return message_of(failure);
  return difference("pieces of write-combined memory did not come", downloaded(combining, there.memory()) == expected);
}

/// Of two compilers the newest does not know the GPU.
Finding finds_a_compiler() {
  TemporaryFolder const toolkit;
  for (auto const& [name, oldest] : {std::pair{"libnvrtc.so.13", 90}, {"libnvrtc.so.12", 75}}) {
    std::filesystem::copy_file(UNIMEM_NVRTC_STANDIN, toolkit / name);
    std::ofstream(toolkit / (std::string(name) + ".oldest")) << oldest;
  }
  std::string const own = std::getenv("UNIMEM_NVRTC_LIBRARY");
  unsetenv("UNIMEM_NVRTC_LIBRARY");
  auto const found = detail::cuda::load_nvrtc(13000, {toolkit.path().string() + '/'}, 80);
  setenv("UNIMEM_NVRTC_LIBRARY", own.c_str(), 1);
  return difference("a compiler was taken that does not know the GPU", found.serves(80));
}

Finding fills(Device& gpu) {
  Allocated const there{gpu, 100'000};
  auto const pattern = noise(16, 2);
  auto queue = gpu.create_queue();
  queue.fill(there.memory(), repeated(1, 0));
  queue.fill(there.memory(), pattern);
  Bytes back(100'000);
  queue.download(back.data(), there.memory(), back.size()).wait();
  for (std::size_t i = 0; i < back.size(); ++i) {
    if (back[i] != pattern[i % 16]) return "a fill does not reach byte " + std::to_string(i);
  }
  return {};
}

/// Many pieces from pinned memory while the streams are held up, every way they may go, and twice each: what is kept
/// for the first must not serve the second.
Finding scatters(Device& gpu) {
  constexpr std::size_t count = 100, stride = 1000, bytes = count * stride;
  auto& control = standin_control();
  Allocated const host{device("cpu"), bytes, Location::pinned};
  auto* const memory = reinterpret_cast<std::byte*>(host.memory().object);
  auto const news = noise(bytes, 4);
  std::ranges::copy(news, memory);
  struct Way {
    char const* name;
    std::size_t bytes;
    bool even;
  };
  auto queue = gpu.create_queue();
  for (auto const& [name, length, even] : {Way{"kernel", 300, false}, Way{"rectangle", 600, true}}) {
    Allocated const first{gpu, bytes}, second{gpu, bytes};
    QuietEnd const end;
    queue.fill(first.memory(), repeated(1, 0));
    queue.fill(second.memory(), repeated(1, 0));
    queue.synchronize();
    std::vector<CopyPiece> one, other;
    for (std::size_t i = 0; i < count; ++i) {
      auto const at = i * stride + (even ? 0 : i % 7);
      one.push_back({at, at, length});
      other.push_back({at + 20, at, length});
    }
    control.set_latency(200'000, 200'000);  // much longer than it is looked at
    auto const sent = queue.upload(first.memory(), memory, one);
    bool early = false;
    for (int look = 0; look < 20 && !early; ++look) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
      early = sent.ready();
    }
    control.set_latency(2000, 2000);
    queue.upload(second.memory(), memory, other);
    control.set_latency(0, 0);
    Bytes back(bytes), shifted(bytes);
    queue.download(back.data(), first.memory(), bytes).wait();
    queue.download(shifted.data(), second.memory(), bytes).wait();
    if (early) return std::string(name) + ": pieces are there before their stream has begun";
    Bytes expected(bytes), expected_shifted(bytes);
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(&news[one[i].from], length, &expected[one[i].to]);
      std::copy_n(&news[other[i].from], length, &expected_shifted[other[i].to]);
    }
    if (back != expected || shifted != expected_shifted)
      return std::string(name) + ": pieces are not where they belong";
  }
  return {};
}

Finding runs_a_kernel(Device& gpu) {
  Allocated const there{gpu, 400};
  auto queue = gpu.create_queue();
  queue.fill(there.memory(), repeated(1, 0));
  std::optional<Gate> gate{queue};
  standin_control().set_latency(0, 20'000);  // longer than it takes to let the code go
  std::array const arguments{memory_argument(there.memory()), scalar_argument(std::uint32_t{3})};
  auto const event = queue.run(gpu.compile(add_kernel()), Range{100}, arguments);  // nobody else keeps the program
  gate.reset();
  auto const failure = event.wait_for_error();
  standin_control().set_latency(0, 0);
  if (failure) return message_of(failure);
  Bytes back(400);
  queue.download(back.data(), there.memory(), 400).wait();
  return difference("the kernel did not run", back[0] == std::byte{3} && back[396] == std::byte{3});
}

Finding gives_memory_back(Device& gpu) {
  auto& control = standin_control();
  auto const before = control.live();
  auto const free_before = gpu.memory_info().free_bytes;
  {
    Allocated const memory{gpu, 1 << 20};
  }
  {
    Allocated const pinned{device("cpu"), 1 << 16, Location::pinned};
  }
  auto const after = control.live();
  if (after.allocations != before.allocations) return "memory did not go back to the driver";
  if (after.registered != before.registered) return "memory stays registered";
  return difference("memory stays counted as used", gpu.memory_info().free_bytes == free_before);
}

Finding maps_pages(Device& gpu) {
  auto& source = *gpu.pages();
  auto const page = source.page_bytes();
  auto const before = standin_control().live();
  Finding finding;
  {
    Reserved range{source, 4 * page};
    range.map(0, source.create_pages(3 * page));
    auto const news = noise(3 * page, 3);
    Bytes back(3 * page);
    QuietEnd const end;
    auto queue = gpu.create_queue();
    queue.upload(range.memory(0, 3 * page), news.data(), news.size());
    queue.download(back.data(), range.memory(0, 3 * page), back.size()).wait();
    finding = difference("pages do not hold what was written there", back == news);
  }
  if (!finding.empty()) return finding;
  return difference("pages did not go back to the driver", standin_control().live().handles == before.handles);
}

/// The caller is at work on another GPU meanwhile.
Finding leaves_the_caller_alone(Device& gpu, Device& other) {
  auto& control = standin_control();
  auto const depth = control.stack_depth();
  auto const used = control.used(1);
  Finding finding;
  auto other_queue = other.create_queue();
  other_queue
      .run_native([&](void*) {
        auto const inside = control.stack_depth();
        Allocated const memory{gpu, 5000};
        if (control.used(1) != used) finding = "memory of one GPU came from another";
        static_cast<void>(gpu.memory_info());
        if (control.stack_depth() != inside) finding = "a context was left on the caller's stack";
      })
      .wait();
  if (finding.empty() && control.stack_depth() != depth) finding = "contexts were left on the caller's stack";
  return finding;
}

}  // namespace

std::string pins_after_a_loss(Device& first, Device& second) {
  auto& control = standin_control();
  static_cast<void>(first.memory_info());
  auto const before = control.live().registered;
  auto& cpu = device("cpu");
  auto const pinned = cpu.allocate(100'000, Location::pinned);
  static_cast<void>(second.memory_info());
  cpu.release(pinned, Location::pinned);
  control.lose(0, detail::cuda::Result::illegal_address);  // nobody has told the library yet
  if (control.live().registered != before) return "memory stays pinned";
  try {
    Allocated const later{cpu, 100'000, Location::pinned};
    return difference("nothing is pinned any more", control.live().registered == before + 1);
  } catch (OutOfMemory const& refused) {
    return refused.what();
  }
}

std::string notices_loss(Device& gpu) {
  Allocated const there{gpu, 100};
  auto queue = gpu.create_queue();
  standin_control().fail("cuMemsetD8Async", 1, detail::cuda::Result::illegal_address, standin::FaultKind::late);
  standin_control().hold(true);  // no call but the last one can be told of it
  auto const event = queue.fill(there.memory(), repeated(1, 1));
  standin_control().hold(false);
  if (!event.wait_for_error()) return "the fault went unnoticed";
  return difference("the device is not known to be lost", gpu.is_lost());
}

std::vector<std::string> findings() {
  auto& control = standin_control();
  control.reset();
  auto& gpu = device("cuda:0");
  auto& other = device("cuda:1");
  std::vector<Finding> all;
  auto const drill = [&](std::function<Finding()> const& exercise) {
    try {
      if (auto finding = exercise(); !finding.empty()) all.push_back(std::move(finding));
    } catch (std::exception const& thrown) {
      all.push_back(thrown.what());
    }
  };
  drill([&] { return copies_in_order(gpu); });
  drill([&] { return waits_for_the_cpu(gpu); });
  drill([&] { return lives_beside_a_capture(gpu); });
  drill([&] { return raises_beside_coroutines(gpu); });
  drill([&] { return adopts_streams(gpu); });
  drill([&] { return allocates_beside_a_capture(device("cuda:0,allocator=async")); });
  drill([&] { return launches_a_graph(gpu); });
  drill([&] { return copies_between(gpu, other); });
  drill([&] { return maps_beside_a_refusal(gpu, other); });
  drill([&] { return copies_odd_rows(gpu); });
  drill([&] { return reaches_combined_memory(device("cuda:0,write_combined=1")); });
  drill([&] { return finds_a_compiler(); });
  drill([&] { return fills(gpu); });
  drill([&] { return scatters(gpu); });
  drill([&] { return runs_a_kernel(gpu); });
  drill([&] { return gives_memory_back(gpu); });
  drill([&] { return maps_pages(gpu); });
  drill([&] { return leaves_the_caller_alone(gpu, other); });
  for (auto& note : standin::violations(control)) all.push_back(std::move(note));
  return all;
}

}  // namespace unimem
