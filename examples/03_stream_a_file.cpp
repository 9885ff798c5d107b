// A file larger than the memory it may use: 32 MiB through a device of 8 MiB, in chunks, with every byte accounted for.

#include <unimem/stream/stream_file.hpp>
#include <unimem/stream/stream_kernel.hpp>
#include <unimem/unimem.hpp>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <variant>
#include <vector>

namespace {

constexpr std::size_t mebi = std::size_t{1} << 20;

/// Sixteen million 16-bit numbers 0, 1, 2, … 999, 0, 1, …
void write_input(std::filesystem::path const& path) {
  std::vector<std::uint16_t> numbers(16 * mebi);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::uint16_t>(i % 1000);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<char const*>(numbers.data()),
             static_cast<std::streamsize>(numbers.size() * sizeof numbers[0]));
}

void show(unimem::StreamResult const& run, std::size_t limit) {
  std::printf("%s: %llu bytes in %llu chunks, %llu down, device memory within its limit: %s\n", run.kernel.c_str(),
              static_cast<unsigned long long>(run.bytes), static_cast<unsigned long long>(run.chunks),
              static_cast<unsigned long long>(run.host_to_device_bytes), run.peak_device_bytes <= limit ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) {
  auto const folder = std::filesystem::path(argc > 1 ? argv[1] : std::filesystem::temp_directory_path().c_str());
  auto const input = folder / "unimem_03_input.u16";
  auto const output = folder / "unimem_03_output.u16";
  write_input(input);

  unimem::StreamOptions options;
  options.device = &unimem::device("sim:memory=8MiB");
  options.chunk_bytes = 2 * mebi;
  options.memory_limit = 7 * mebi;
  options.element = unimem::ElementType::u16;

  auto const statistics = unimem::stream_file(input, unimem::statistics(), options);
  show(statistics, options.memory_limit);
  auto const& found = std::get<unimem::StatisticsResult>(statistics.result);
  std::printf("  mean %.6f, standard deviation %.6f\n", found.mean, found.standard_deviation);

  // y = 100·x + 7, written out. What does not fit 16 bits saturates.
  options.output = output;
  auto const mapped = unimem::stream_file(input, unimem::affine(unimem::ElementType::u16, 100.0, 7.0), options);
  show(mapped, options.memory_limit);

  std::vector<std::uint16_t> first(1000);
  std::ifstream(output, std::ios::binary)
      .read(reinterpret_cast<char*>(first.data()), static_cast<std::streamsize>(first.size() * sizeof first[0]));
  std::printf("  0 became %u, 3 became %u, 999 became %u\n", first[0], first[3], first[999]);

  // A chunk that does not fit the limit is refused, and never made smaller in silence.
  options.output.clear();
  options.chunk_bytes = 8 * mebi;
  try {
    static_cast<void>(unimem::stream_file(input, unimem::histogram(), options));
  } catch (unimem::OutOfMemory const& error) {
    std::printf("8 MiB chunks: out of memory, the limit is %zu\n", error.limit());
  }

  std::filesystem::remove(input);
  std::filesystem::remove(output);
  return 0;
}
