#include "fuzz/target.hpp"
#include "stream/manifest.hpp"

#include <string>

namespace unimem::fuzz {
namespace {

/// Every manifest that is read has as many checksums as its sizes ask for, and can be written, and then says the same.
bool run_manifest(std::string_view input) {
  auto const manifest = taken_of_file("a.json", [&] { return detail::parse_manifest(input, "a.json"); });
  if (!manifest) return false;
  require(input.find('\0') == std::string_view::npos, "what is behind a NUL was not read");
  require(manifest->chunk_bytes > 0, "chunks of no bytes were taken");
  std::uint64_t const largest = manifest->checksum == Checksum::crc32c ? 0xFFFF'FFFFU : ~std::uint64_t{0};
  for (auto const& file : manifest->files) {
    auto const whole = file.bytes / manifest->chunk_bytes;
    auto const rest = file.bytes % manifest->chunk_bytes;
    require(file.chunks.size() == whole + (rest == 0 ? 0 : 1), "a file has other checksums than chunks");
    require(file.chunks.size() <= input.size(), "there are more checksums than text");
    for (auto const digest : file.chunks) require(digest <= largest, "a checksum has more bits than there are");
    require(!file.header || *file.header <= largest, "a header's checksum has more bits than there are");
    auto const* const found = manifest->find(file.name);
    require(found != nullptr && found->name == file.name, "a file of the manifest is not found");
  }

  auto const written = detail::to_json(*manifest);
  auto const again = detail::parse_manifest(written, "a.json");
  require(again == *manifest, "what is written from a manifest says something else");
  require(detail::to_json(again) == written, "what is written twice differs");
  return true;
}

Enlisted const manifest_target{{"manifest", run_manifest}};

}  // namespace
}  // namespace unimem::fuzz
