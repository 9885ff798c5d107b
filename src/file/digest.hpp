#pragma once

#include <unimem/file/checksum.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// A checksum of bytes that come one piece after the other. Used by one thread at a time.
class Digest {
 public:
  /// Throws UnsupportedOperation where the checksum needs a library that is not there.
  explicit Digest(Checksum algorithm);
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  void add(std::span<const std::byte> bytes);
  /// Of what was added since it was made, or since the last `take`; begins anew.
  [[nodiscard]] std::uint64_t take();

 private:
  class Algorithm;
  struct Xxh3;
  struct Crc32c;
  std::unique_ptr<Algorithm> algorithm_;
};

/// The checksum of all of `bytes`.
[[nodiscard]] std::uint64_t digest_of(Checksum algorithm, std::span<const std::byte> bytes);

/// As manifests and reports write it: hexadecimal, all digits that the algorithm has.
[[nodiscard]] std::string digest_text(Checksum algorithm, std::uint64_t digest);
/// Nothing where it is no such text.
[[nodiscard]] std::optional<std::uint64_t> parse_digest(Checksum algorithm, std::string_view text) noexcept;

/// A checksum of every block of a file, whose bytes come in order. Used by one thread at a time.
class BlockDigests {
 public:
  /// Blocks of `block_bytes`, at least 1.
  BlockDigests(Checksum algorithm, std::uint64_t block_bytes);

  void add(std::span<const std::byte> bytes);
  /// The file is at its end: what is left is a block, too, shorter than others.
  void finish();
  /// Those of the blocks that have become whole since the last call.
  [[nodiscard]] std::vector<std::uint64_t> take();

 private:
  void complete();

  Digest digest_;
  std::uint64_t block_bytes_;
  std::uint64_t within_ = 0;  ///< bytes of the block that is being added to
  std::vector<std::uint64_t> digests_;
};

}  // namespace unimem::detail
