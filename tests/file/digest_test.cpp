#include "file/digest.hpp"

#include <unimem/core/error.hpp>

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <span>
#include <string_view>
#include <vector>

namespace unimem::detail {
namespace {

constexpr std::array algorithms{Checksum::xxh3, Checksum::crc32c};

std::vector<std::byte> noise(std::size_t count) {
  std::mt19937 random{2026};
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::uint64_t of_text(Checksum algorithm, std::string_view text) {
  return digest_of(algorithm, std::as_bytes(std::span{text}));
}

// Of the test vectors of RFC 3720 (B.4), and of xxHash 0.8.1's own program.
TEST(Digest, GivesTheValuesOfTheirDefinitions) {
  EXPECT_EQ(of_text(Checksum::crc32c, ""), 0U);
  EXPECT_EQ(of_text(Checksum::crc32c, "123456789"), 0xe3069283U);
  EXPECT_EQ(digest_of(Checksum::crc32c, std::vector<std::byte>(32)), 0x8a9136aaU);
  EXPECT_EQ(digest_of(Checksum::crc32c, std::vector<std::byte>(32, std::byte{0xFF})), 0x62a8ab43U);
  EXPECT_EQ(of_text(Checksum::xxh3, ""), 0x2d06800538d394c2U);
  EXPECT_EQ(of_text(Checksum::xxh3, "123456789"), 0x72dcb18b67a17dffU);
}

TEST(Digest, OfPiecesIsThatOfAll) {
  auto const bytes = noise(100'003);
  for (auto const algorithm : algorithms) {
    Digest digest(algorithm);
    auto rest = std::span{bytes};
    for (std::size_t piece = 1; !rest.empty(); piece = piece * 3 + 1) {
      auto const now = std::min(piece, rest.size());
      digest.add(rest.first(now));
      rest = rest.subspan(now);
    }
    EXPECT_EQ(digest.take(), digest_of(algorithm, bytes)) << to_string(algorithm);
    EXPECT_EQ(digest.take(), digest_of(algorithm, {})) << "begins anew";
  }
}

TEST(Digest, ChangesWithEveryBit) {
  auto bytes = noise(1'000);
  for (auto const algorithm : algorithms) {
    auto const before = digest_of(algorithm, bytes);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_NE(digest_of(algorithm, bytes), before) << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(Digest, IsReadAsItIsWritten) {
  EXPECT_EQ(digest_text(Checksum::crc32c, 0xabcU), "00000abc");
  EXPECT_EQ(digest_text(Checksum::xxh3, 0xabcU), "0000000000000abc");
  for (auto const algorithm : algorithms) {
    EXPECT_EQ(parse_digest(algorithm, digest_text(algorithm, 0xfedcba98U)), 0xfedcba98U);
    for (auto const* const text : {"", "abc", "0000000g", "ABCDEF01", "00000abc0", "-0000001", "0x000001"}) {
      EXPECT_EQ(parse_digest(algorithm, text), std::nullopt) << text;
    }
    EXPECT_EQ(parse_checksum(to_string(algorithm)), algorithm);
  }
  EXPECT_THROW(static_cast<void>(parse_checksum("md5")), InvalidArgument);
}

TEST(BlockDigests, AreThoseOfEachBlockHoweverTheBytesCome) {
  auto const bytes = noise(10'007);
  constexpr std::size_t block = 1'000;
  std::vector<std::uint64_t> expected;
  for (std::size_t at = 0; at < bytes.size(); at += block) {
    expected.push_back(digest_of(Checksum::xxh3, std::span{bytes}.subspan(at, std::min(block, bytes.size() - at))));
  }
  for (std::size_t const piece : {1U, 7U, 999U, 1'000U, 1'001U, 5'000U, 20'000U}) {
    BlockDigests digests(Checksum::xxh3, block);
    std::vector<std::uint64_t> found;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      digests.add(std::span{bytes}.subspan(at, std::min(piece, bytes.size() - at)));
      auto const fresh = digests.take();
      found.insert(found.end(), fresh.begin(), fresh.end());
    }
    EXPECT_EQ(found.size(), 10U);
    digests.finish();
    digests.finish();  // nothing is left
    auto const last = digests.take();
    found.insert(found.end(), last.begin(), last.end());
    EXPECT_EQ(found, expected) << piece;
  }
}

}  // namespace
}  // namespace unimem::detail
