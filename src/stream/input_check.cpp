#include "stream/input_check.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unimem::detail {

InputCheck::InputCheck(Checksum algorithm, std::uint64_t block_bytes, Manifest const* expected)
    : blocks_(algorithm, block_bytes), expected_(expected), found_{algorithm, block_bytes, {}} {}

void InputCheck::begin_file(std::string const& name, std::optional<std::uint64_t> bytes,
                            std::span<const std::byte> header) {
  auto& file = found_.files.emplace_back();
  file.name = name;
  if (!header.empty()) file.header = digest_of(found_.checksum, header);
  told_ = 0;
  if (expected_ == nullptr) return;
  expected_file_ = expected_->find(name);
  // A pipe is called by another name than the file that was sent through it.
  if (expected_file_ == nullptr && !bytes && expected_->files.size() == 1) expected_file_ = &expected_->files.front();
  if (expected_file_ == nullptr) {
    throw IoError(name, 0,
                  expected_->has_name_of(name) ? "the manifest has several files of that name, in other folders"
                                               : "the manifest has no such file");
  }
  if (bytes && *bytes != expected_file_->bytes) {
    throw IoError(name, 0,
                  fmt::format("it has {} bytes of data, and the manifest's '{}' {}", *bytes, expected_file_->name,
                              expected_file_->bytes));
  }
  if (file.header.has_value() != expected_file_->header.has_value()) {
    throw IoError(
        name, 0,
        fmt::format("the manifest's '{}' has {} header", expected_file_->name, expected_file_->header ? "a" : "no"));
  }
  if (file.header) {
    compare(*expected_file_->header, *file.header, ChecksumMismatch::Chunk::header, 0, header.size());
  }
}

void InputCheck::add(std::span<const std::byte> bytes) {
  blocks_.add(bytes);
  found_.files.back().bytes += bytes.size();
  take_in(blocks_.take());
}

void InputCheck::end_file() {
  blocks_.finish();
  take_in(blocks_.take());
  auto const& file = found_.files.back();
  if (expected_file_ == nullptr || file.bytes == expected_file_->bytes) return;
  throw IoError(file.name, 0,
                fmt::format("{} bytes of data came, and the manifest has {}", file.bytes, expected_file_->bytes));
}

void InputCheck::go_on(std::uint64_t bytes, std::vector<std::uint64_t> const& digests) {
  auto& file = found_.files.back();
  file.bytes = bytes;
  take_in(digests);
  told_ = file.chunks.size();
}

void InputCheck::take_in(std::vector<std::uint64_t> const& digests) {
  auto& file = found_.files.back();
  for (auto const digest : digests) {
    auto const index = file.chunks.size();
    file.chunks.push_back(digest);
    if (expected_file_ == nullptr || index >= expected_file_->chunks.size()) continue;
    auto const offset = index * found_.chunk_bytes;
    compare(expected_file_->chunks[index], digest, index, offset, std::min(found_.chunk_bytes, file.bytes - offset));
  }
}

void InputCheck::compare(std::uint64_t expected, std::uint64_t found, std::size_t chunk, std::uint64_t offset,
                         std::uint64_t bytes) {
  if (expected == found) return;
  auto const text = [&](std::uint64_t digest) { return digest_text(found_.checksum, digest); };
  mismatches_.push_back({found_.files.back().name, chunk, offset, bytes, text(expected), text(found)});
}

std::vector<std::uint64_t> InputCheck::take_new() {
  auto const& chunks = found_.files.back().chunks;
  std::vector<std::uint64_t> fresh(chunks.begin() + static_cast<std::ptrdiff_t>(told_), chunks.end());
  told_ = chunks.size();
  return fresh;
}

void InputCheck::throw_mismatches() const {
  if (!mismatches_.empty()) throw ChecksumMismatch(mismatches_);
}

}  // namespace unimem::detail
