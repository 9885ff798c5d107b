// What a stream of a cold file takes beside the slowest of its stages alone, each on memory of a chunk that is used
// again and again: bytes read, bytes sent to the device, the kernel run. Medians of rounds in turn.
//
//     bench_stages [--quick] [--folder PATH]     1 GiB (256 MiB with --quick) in that folder (default: /tmp)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/stream/stream_file.hpp>

#include "file/direct_reader.hpp"
#include "file/file.hpp"
#include "files.hpp"
#include "stream/chunk_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using unimem::bench::NoiseFile;
using unimem::bench::part;
using unimem::bench::print;
using unimem::bench::verdict;
using unimem::bench::Way;

/// A chunk on a device, and the histogram of it.
class Chunk {
 public:
  explicit Chunk(unimem::Device& device)
      : device_(device),
        work_(unimem::histogram().work()->start(device, unimem::ElementType::u8, device.reaches_host_memory())),
        bytes_(unimem::Shape(part), options()),
        results_(unimem::Shape(work_->result_bytes(part)), options()),
        queue_(device.create_queue()) {
    bytes_.fill(std::byte{1});
    compute();
  }

  /// From the host's memory to the device's.
  void send() {
    bytes_.mark_host_dirty();
    bytes_.sync_to_device();
  }
  void compute() {
    work_->launch(queue_, bytes_, results_, part);
    queue_.synchronize();
    work_->combine(results_.host_view(0, results_.size()), part);
  }

 private:
  [[nodiscard]] unimem::BufferOptions options() const {
    unimem::BufferOptions made;
    made.device = &device_;
    return made;
  }
  unimem::Device& device_;
  std::unique_ptr<unimem::detail::ChunkRun> work_;
  unimem::UnifiedBuffer<std::byte> bytes_, results_;
  unimem::Queue queue_;
};

void compare(unimem::Device& device, NoiseFile const& file, int rounds) {
  Chunk chunk(device);
  unimem::MemoryManager manager;
  std::vector<std::byte> to(part);
  auto const times = file.bytes() / part;
  std::vector<Way> ways;
  ways.push_back({"bytes read", [&] {
                    auto const opened = unimem::detail::File::open(file.path(), O_RDONLY, "opening");
                    auto const reader = unimem::detail::DirectReader::open(opened);
                    for (std::size_t i = 0; i < times; ++i) static_cast<void>(reader.read(i * part, to, {}));
                  }});
  if (!device.reaches_host_memory()) {
    ways.push_back({"bytes sent", [&] {
                      for (std::size_t i = 0; i < times; ++i) chunk.send();
                    }});
  }
  ways.push_back({"kernel run", [&] {
                    for (std::size_t i = 0; i < times; ++i) chunk.compute();
                  }});
  ways.push_back({"stream_file", [&] {
                    unimem::StreamOptions options;
                    options.manager = &manager;
                    options.device = &device;
                    options.access = unimem::FileAccess::direct;
                    static_cast<void>(unimem::stream_file(file.path(), unimem::histogram(), options));
                  }});
  for (int i = 0; i < rounds; ++i) {
    for (auto& way : ways) {
      file.make_cold();
      way.round(file);
    }
  }
  fmt::print("A cold file of {} on {}, {}:\n", unimem::format_size(file.bytes()), device.id(), device.info().name);
  for (auto const& way : ways) print(way, ways.front());
  auto const slowest = std::ranges::min(std::span(ways).first(ways.size() - 1), {}, &Way::median).median();
  verdict("time of stream_file / of the slowest stage", slowest / ways.back().median(), "<", 1.1);
}

}  // namespace

int main(int argc, char** argv) try {
  auto const asked = unimem::bench::parse(argc, argv, {.bytes = std::size_t{1} << 30U, .rounds = 7});
  if (!asked) return 2;
  NoiseFile const file(asked->folder, asked->bytes);
  for (unimem::Device& device : unimem::devices()) {
    if (device.backend() == unimem::Backend::cpu || device.backend() == unimem::Backend::opencl) {
      compare(device, file, asked->rounds);
    }
  }
  return 0;
} catch (std::exception const& error) {
  fmt::print(stderr, "bench_stages: {}\n", error.what());
  return 1;
}
