#include <unimem/stream/checksum_mismatch.hpp>

#include <fmt/format.h>

#include <utility>

namespace unimem {
namespace {

using Chunk = ChecksumMismatch::Chunk;

bool continues(Chunk const& before, Chunk const& next) {
  return before.index != Chunk::header && next.index == before.index + 1 && next.path == before.path;
}

/// "chunk 3 (bytes [12, 16) of the data): ...", chunks in a row as one.
std::string described(std::vector<Chunk> const& chunks) {
  constexpr std::size_t most_runs = 100;
  std::string text;
  std::size_t runs = 0;
  for (std::size_t first = 0, last = 0; first < chunks.size(); first = last + 1) {
    for (last = first; last + 1 < chunks.size() && continues(chunks[last], chunks[last + 1]);) ++last;
    if (++runs > most_runs) return text + "; and more";
    auto const& [path, index, offset, bytes, expected, found] = chunks[first];
    if (!text.empty()) text += "; ";
    if (path != chunks.front().path) text += path + ": ";
    auto const end = chunks[last].offset + chunks[last].bytes;
    if (index == Chunk::header) {
      text += fmt::format("header (bytes [{}, {}) of the file)", offset, end);
    } else if (last == first) {
      text += fmt::format("chunk {} (bytes [{}, {}) of the data)", index, offset, end);
    } else {
      text += fmt::format("chunks {} to {} (bytes [{}, {}) of the data)", index, chunks[last].index, offset, end);
    }
    if (last == first) text += fmt::format(": {} is expected, {} found", expected, found);
  }
  return text;
}

}  // namespace

ChecksumMismatch::ChecksumMismatch(std::vector<Chunk> found, std::string_view expected)
    : IoError(found.front().path, 0, fmt::format("its checksums differ from {}: {}", expected, described(found))),
      chunks(std::move(found)) {}
ChecksumMismatch::~ChecksumMismatch() = default;

}  // namespace unimem
