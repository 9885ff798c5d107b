// How well stream_file overlaps its stages: the wall time of one stream against what its stages cost alone, on every
// device here that streaming is made for. Every figure is a ratio against something measured in the same run; medians
// of alternating rounds.
//
//     bench_stream [--quick] [--device ID]…      1 GiB (256 MiB with --quick), kept page-cached beside this program

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/stream/stream_file.hpp>

#include "kernel/known_answer.hpp"
#include "stream/chunk_work.hpp"
#include "stream/histogram_loop.hpp"
#include "stream/input_file.hpp"
#include "stream/mapped_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace unimem;

constexpr std::size_t chunk_bytes = std::size_t{64} << 20;
constexpr std::size_t buffers = 3;
constexpr int rounds = 5;

/// Wall time, and processor time of all threads of this process, both in seconds.
struct Cost {
  double wall = 0;
  double processor = 0;
};

double processor_seconds() {
  ::timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Cost cost_of(std::function<void()> const& work) {
  auto const processor = processor_seconds();
  auto const begin = std::chrono::steady_clock::now();
  work();
  std::chrono::duration<double> const wall = std::chrono::steady_clock::now() - begin;
  return {wall.count(), processor_seconds() - processor};
}

struct Stage {
  std::string name;
  std::function<void()> work;
  std::vector<Cost> costs{};

  [[nodiscard]] double median(double Cost::* which) const {
    std::vector<double> values;
    for (auto const& cost : costs) values.push_back(cost.*which);
    std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
    return values[values.size() / 2];
  }
};

/// Runs every stage once to warm up, then all of them in turn, so that a slow minute of the machine meets them all.
void measure(std::vector<Stage>& stages) {
  for (auto& stage : stages) stage.work();
  for (int round = 0; round < rounds; ++round) {
    for (auto& stage : stages) stage.costs.push_back(cost_of(stage.work));
  }
}

/// Mixed content, the same every time: noise, text and stretches of one value by turns.
std::filesystem::path make_file(std::filesystem::path const& path, std::uint64_t bytes) {
  std::error_code missing;
  if (std::filesystem::file_size(path, missing) == bytes && !missing) return path;
  std::mt19937_64 random{2026};
  std::ofstream file(path, std::ios::binary);
  std::string block(std::size_t{1} << 20, '\0');
  for (std::uint64_t at = 0; at < bytes; at += block.size()) {
    auto const kind = at / block.size() % 4;
    auto const constant = static_cast<char>(random());
    for (std::size_t i = 0; i < block.size(); i += 8) {
      auto word = random();
      if (kind == 1) std::memset(&word, constant, sizeof word);
      if (kind >= 2) {
        for (unsigned byte = 0; byte < 8; ++byte)
          block[i + byte] = "etaoin shrdlu\n0123"[(word >> (8 * byte) & 0xFFU) % 18];
      } else {
        std::memcpy(block.data() + i, &word, sizeof word);
      }
    }
    file.write(block.data(), static_cast<std::streamsize>(block.size()));
  }
  file.close();
  if (!file) throw IoError(path.string(), 0, "cannot make the file to stream");
  return path;
}

UnifiedBuffer<std::byte> buffer_over(MemoryManager& manager, Device& device, void* memory, std::size_t bytes) {
  BufferOptions options;
  options.manager = &manager;
  options.device = &device;
  return {Shape(bytes), BufferCore::make(bytes, std::move(options), BufferCore::Wrapped{memory, Ownership::borrow()})};
}

/// The chunks of `data`, each a buffer of its own.
std::vector<UnifiedBuffer<std::byte>> chunks_of(MemoryManager& manager, Device& device, std::span<std::byte> data) {
  std::vector<UnifiedBuffer<std::byte>> chunks;
  for (std::size_t at = 0; at < data.size(); at += chunk_bytes) {
    chunks.push_back(buffer_over(manager, device, data.data() + at, std::min(chunk_bytes, data.size() - at)));
  }
  return chunks;
}

void sum_words(std::span<const std::byte> data, unsigned threads) {
  std::vector<std::jthread> workers;
  auto const part = data.size() / threads / 32 * 32;
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([mine = data.subspan(i * part, part)] {
      std::uint64_t sums[4] = {};
      for (std::size_t at = 0; at < mine.size(); at += 32) {
        std::uint64_t words[4];
        std::memcpy(words, mine.data() + at, sizeof words);
        for (int j = 0; j < 4; ++j) sums[j] += words[j];
      }
      [[maybe_unused]] static volatile std::uint64_t sink;
      sink = sums[0] + sums[1] + sums[2] + sums[3];
    });
  }
}

void plain_loop(std::filesystem::path const& path) {
  detail::InputFile const input(path);
  std::vector<std::byte> block(std::size_t{256} << 10);
  std::array<std::uint32_t, 256> counts{};
  std::array<std::uint64_t, 256> total{};
  for (std::uint64_t at = 0; at < input.bytes(); at += block.size()) {
    auto const part = std::span{block}.first(std::min<std::uint64_t>(block.size(), input.bytes() - at));
    input.read(at, part);
    detail::count_bytes({reinterpret_cast<std::uint8_t const*>(part.data()), part.size()}, counts);
    for (std::size_t value = 0; value < 256; ++value) total[value] += counts[value];
  }
  [[maybe_unused]] static volatile std::uint64_t sink;
  sink = total[0];
}

void print_verdict(char const* what, double ratio, bool good, char const* target) {
  fmt::print("  {:<62} {:6.2f}   target {}: {}\n", what, ratio, target, good ? "met" : "MISSED");
}

/// One stream against its stages alone.
void bench_device(std::filesystem::path const& path, Device& device, std::span<std::byte> data) {
  unsigned const cores = std::max(1U, std::thread::hardware_concurrency());
  bool const shares = device.shares_storage_with_host();
  auto const run = histogram().work()->start(device, ElementType::u8, shares);
  MemoryManager manager;
  detail::InputFile const input(path);
  auto queue = device.create_queue();
  auto chunks = chunks_of(manager, device, data);
  BufferOptions options;
  options.manager = &manager;
  options.device = &device;
  // As many as the stream has: one alone would stay in a cache that the stream's do not fit in.
  std::vector<UnifiedBuffer<std::byte>> ring;
  for (std::size_t i = 0; i < buffers && !shares; ++i) {
    ring.emplace_back(chunk_bytes, options);
    input.read(0, ring.back().host_overwrite());
    ring.back().sync_to_device(device);
  }
  UnifiedBuffer<std::byte> results(run->result_bytes(chunk_bytes), options);

  StreamOptions streaming;
  streaming.chunk_bytes = chunk_bytes;
  streaming.buffers = buffers;
  streaming.device = &device;
  streaming.manager = &manager;  // every stage alone works in memory touched before; so does the stream
  std::vector<Stage> stages;
  stages.push_back({"stream_file", [&] { stream_file(path, histogram(), streaming); }});
  if (shares) {
    stages.push_back({"map", [&] {
                        detail::MappedInput windows(input, 1, chunk_bytes);
                        detail::Retries retries(0);
                        for (std::uint64_t at = 0; at < input.bytes(); at += chunk_bytes) {
                          static_cast<void>(windows.open(0, at, std::min(chunk_bytes, data.size() - at), retries,
                                                         [] { return false; }));
                          windows.close(0);
                        }
                      }});
    stages.push_back({"kernel", [&] {
                        for (auto& part : chunks) run->launch(queue, part, results, part.size());
                        queue.synchronize();
                      }});
  } else {
    stages.push_back({"read", [&] {
                        for (std::uint64_t at = 0; at < input.bytes(); at += chunk_bytes) {
                          auto const to = ring[at / chunk_bytes % buffers].host_overwrite();
                          input.read(at, to.first(std::min(chunk_bytes, data.size() - at)));
                        }
                      }});
    stages.push_back({"upload", [&] {
                        for (std::size_t i = 0; i < chunks.size(); ++i) {
                          auto& chunk = ring[i % buffers];
                          static_cast<void>(chunk.host_overwrite());
                          chunk.prefetch(queue).wait();
                        }
                      }});
    stages.push_back({"kernel", [&] {
                        for (std::size_t i = 0; i < chunks.size(); ++i) {
                          run->launch(queue, ring[i % buffers], results, chunk_bytes);
                        }
                        queue.synchronize();
                      }});
    stages.push_back({"download", [&] {
                        for (std::size_t i = 0; i < chunks.size(); ++i) {
                          static_cast<void>(results.device_overwrite(device));
                          static_cast<void>(results.host_view());
                        }
                      }});
  }
  if (shares) {
    stages.push_back({"sum of words", [&] { sum_words(data, cores); }});
    stages.push_back({"plain loop", [&] { plain_loop(path); }});
  }
  measure(stages);

  auto const gigabytes = static_cast<double>(data.size()) / 1e9;
  fmt::print("\n{}: {} in chunks of {}, {} buffers, {} cores\n", device.id(), format_size(data.size()),
             format_size(chunk_bytes), buffers, cores);
  fmt::print("  {:<14} {:>9} {:>12} {:>9}\n", "", "wall s", "processor s", "GB/s");
  double slowest = 0;
  double processor = 0;
  for (auto const& stage : stages) {
    auto const wall = stage.median(&Cost::wall);
    fmt::print("  {:<14} {:9.4f} {:12.4f} {:9.2f}\n", stage.name, wall, stage.median(&Cost::processor),
               gigabytes / wall);
    bool const counts = stage.name != "stream_file" && stage.name != "sum of words" && stage.name != "plain loop";
    if (!counts) continue;
    slowest = std::max(slowest, wall);
    processor += stage.median(&Cost::processor);
  }
  auto const wall_of = [&](std::string_view name) {
    return std::ranges::find(stages, name, &Stage::name)->median(&Cost::wall);
  };
  auto const bound = std::max(slowest, processor / cores);
  auto const ratio = wall_of("stream_file") / bound;
  print_verdict("wall time / larger of (slowest stage, processor time ÷ cores)", ratio, ratio <= 1.25, "≤ 1.25");
  if (!shares) return;
  auto const bandwidth = wall_of("sum of words") / wall_of("kernel");
  print_verdict("kernel's rate / read bandwidth (words summed on all cores)", bandwidth, bandwidth >= 0.5, "≥ 0.50");
  auto const loop = wall_of("stream_file") / wall_of("plain loop");
  print_verdict("wall time / plain read loop on one thread, same kernel", loop, loop <= 1.0, "≤ 1.00");
}

/// What a process pays before its first stream through a kernel: a run on what the answer is known of, a look at the
/// disk where an earlier process ran it, and a look at what the process knows itself, beside streaming one chunk.
void bench_first_use(std::filesystem::path const& chunk, Device& device) {
  namespace fs = std::filesystem;
  auto const folder = chunk.parent_path() / "bench_stream_answers";
  auto const location = device.shares_storage_with_host() ? Location::unified : Location::device;
  fmt::print("\n{}: before the first stream through a kernel, ms; ÷ streaming {}\n", device.id(),
             format_size(fs::file_size(chunk)));
  fmt::print("  {:<16} {:>12} {:>12} {:>12} {:>12} {:>10} {:>10}\n", "", "the very first", "a run", "from disk",
             "known", "a run ÷", "from disk ÷");
  MemoryManager manager;
  for (auto const& kernel : {histogram(), statistics(ElementType::f64), affine(ElementType::f32, 2, 1)}) {
    if (!device.info().doubles && kernel.name() != "histogram") continue;
    auto const element = kernel.element().value_or(ElementType::u8);
    auto const run = kernel.work()->start(device, element, false);
    auto const answer = run->known_answer(std::size_t{1} << 30);
    fs::remove_all(folder);
    detail::KnownAnswers known(folder);
    auto const check = [&](detail::KnownAnswers& answers) { answers.check(*answer, device, manager, location); };
    auto const first = cost_of([&] { check(known); });
    StreamOptions streaming;
    streaming.device = &device;
    streaming.manager = &manager;
    std::vector<Stage> stages;
    stages.push_back({"run", [&] {
                        detail::KnownAnswers nowhere{{}};
                        check(nowhere);
                      }});
    stages.push_back({"disk", [&] {
                        detail::KnownAnswers later(folder);
                        check(later);
                      }});
    stages.push_back({"known", [&] { check(known); }});
    stages.push_back({"stream", [&] { stream_file(chunk, kernel, streaming); }});
    measure(stages);
    auto const ms = [&](std::size_t stage) { return stages[stage].median(&Cost::wall) * 1e3; };
    fmt::print("  {:<16} {:14.2f} {:12.2f} {:12.3f} {:12.4f} {:10.3f} {:10.5f}\n",
               fmt::format("{} {}", kernel.name(), to_string(element)), first.wall * 1e3, ms(0), ms(1), ms(2),
               ms(0) / ms(3), ms(1) / ms(3));
  }
  fs::remove_all(folder);
}

/// What asking costs where nothing has to move.
void bench_queries() {
  constexpr int calls = 20'000'000;
  UnifiedBuffer<float> buffer(1'000, BufferOptions{.device = &device("cpu")});
  buffer.fill(1.0F);
  buffer.synchronize();
  unsigned dirty = 0;
  float sum = 0;
  auto const state = cost_of([&] {
    for (int i = 0; i < calls; ++i) dirty += buffer.state() == BufferState::host_dirty ? 1U : 0U;
  });
  auto const read = cost_of([&] {
    for (int i = 0; i < calls; ++i) sum += buffer.host_view()[0];
  });
  fmt::print(
      "\na state query {:.2f} ns, a host read of a synchronized buffer {:.2f} ns ({} and {} of {} calls as expected)\n",
      state.wall / calls * 1e9, read.wall / calls * 1e9, calls - static_cast<int>(dirty), sum > 0 ? calls : 0, calls);
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    std::uint64_t bytes = std::uint64_t{1} << 30;
    std::vector<std::string> ids;
    for (int i = 1; i < argument_count; ++i) {
      std::string_view const argument = arguments[i];
      if (argument == "--quick") {
        bytes = std::uint64_t{256} << 20;
      } else if (argument == "--device" && i + 1 < argument_count) {
        ids.emplace_back(arguments[++i]);
      } else {
        fmt::print(stderr, "bench_stream [--quick] [--device ID]...\n");
        return 2;
      }
    }
    if (ids.empty()) {
      for (Device& found : devices()) {
        if (found.backend() == Backend::cpu || found.backend() == Backend::opencl) ids.emplace_back(found.id());
      }
    }
    auto const here = std::filesystem::canonical("/proc/self/exe").parent_path();
    auto const path = make_file(here / fmt::format("bench_stream_{}.bin", bytes), bytes);
    std::vector<std::byte> data(bytes);
    detail::InputFile(path).read(0, data);
    for (auto const& id : ids) bench_device(path, device(id), data);
    auto const chunk = make_file(here / "bench_stream_chunk.bin", chunk_bytes);
    for (auto const& id : ids) {
      if (device(id).info().compiles_source) bench_first_use(chunk, device(id));
    }
    bench_queries();
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_stream: {}\n", error.what());
    return 1;
  }
  return 0;
}
