// One tensor of a hundred in a cold .safetensors file: opened by name and looked at, beside reading its bytes, which
// are known to lie there. Medians of rounds in turn, a tensor picked at random in each.
//
//     bench_tensors [--quick] [--folder PATH]     4 GiB (256 MiB with --quick) in that folder (default: /tmp)

#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/stream/tensors.hpp>

#include "files.hpp"
#include "spread.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using unimem::bench::NoiseFile;
using unimem::bench::plain_direct;
using unimem::bench::seconds_of;
using unimem::bench::spread;
using unimem::bench::verdict;

constexpr std::size_t tensor_count = 100;

std::string name_of(std::size_t tensor) {
  return fmt::format("layers.{}.weight", tensor);
}

/// Puts a header in the place of the first bytes, which are noise. Returns where the tensors begin.
std::size_t write_header(NoiseFile const& file, std::size_t tensor_bytes) {
  nlohmann::ordered_json header;
  for (std::size_t i = 0; i < tensor_count; ++i) {
    header[name_of(i)] = {{"dtype", "F32"},
                          {"shape", {tensor_bytes / sizeof(float)}},
                          {"data_offsets", {i * tensor_bytes, (i + 1) * tensor_bytes}}};
  }
  auto text = header.dump();
  text.resize((text.size() + 4'095) / 4'096 * 4'096 - sizeof(std::uint64_t), ' ');
  auto const length = std::uint64_t{text.size()};
  std::fstream to(file.path(), std::ios::in | std::ios::out | std::ios::binary);
  to.write(reinterpret_cast<char const*>(&length), sizeof length);
  to.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!to.flush()) throw std::runtime_error("writing a header failed");
  auto const begin = sizeof length + text.size();
  std::filesystem::resize_file(file.path(), begin + tensor_count * tensor_bytes);
  return begin;
}

void compare(NoiseFile const& file, int rounds) {
  constexpr std::size_t reserve = std::size_t{1} << 20;  // for the header
  auto const tensor_bytes = (file.bytes() - reserve) / tensor_count / 4'096 * 4'096;
  auto const begin = write_header(file, tensor_bytes);
  std::vector<double> plain, whole, opening;
  std::mt19937 random{2026};
  for (int i = 0; i < rounds; ++i) {
    auto const tensor = random() % tensor_count;
    file.make_cold();
    plain.push_back(seconds_of([&] { plain_direct(file.path(), begin + tensor * tensor_bytes, tensor_bytes, true); }));
    file.make_cold();
    unimem::MemoryManager manager;
    unimem::FileOptions options;
    options.manager = &manager;
    whole.push_back(seconds_of([&] {
      std::map<std::string, unimem::Tensor> tensors;
      opening.push_back(seconds_of([&] { tensors = unimem::open_tensors(file.path()); }));
      auto const buffer = tensors.at(name_of(tensor)).open<float>(options);
      if (buffer.host_view().size() * sizeof(float) != tensor_bytes) std::abort();
    }));
  }
  fmt::print("One of {} tensors of {}, cold:\n", tensor_count, unimem::format_size(tensor_bytes));
  auto const tell = [](char const* what, std::vector<double> const& seconds) {
    auto const [low, median, high] = spread(seconds);
    fmt::print("    {:<58} {:8.2f} ms ({:.2f} … {:.2f})\n", what, median * 1e3, low * 1e3, high * 1e3);
    return median;
  };
  auto const beside = tell("its bytes, by a plain loop past the page cache", plain);
  static_cast<void>(tell("open_tensors", opening));
  auto const ours = tell("open_tensors, and the tensor on the host", whole);
  verdict("time of opening and reading / of reading its bytes", ours / beside, "<", 1.2);
}

}  // namespace

int main(int argc, char** argv) try {
  auto const asked = unimem::bench::parse(argc, argv, {.bytes = std::size_t{4} << 30U, .rounds = 15});
  if (!asked) return 2;
  compare(NoiseFile(asked->folder, asked->bytes, ".safetensors"), asked->rounds);
  return 0;
} catch (std::exception const& error) {
  fmt::print(stderr, "bench_tensors: {}\n", error.what());
  return 1;
}
