#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/stream/stream_file.hpp>

#include "file/digest.hpp"
#include "stream/manifest.hpp"
#include "stream/npy.hpp"
#include "stream/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

// Checksums of what a stream reads: computed while it is read, written to a manifest, compared with one.

namespace unimem {
namespace {

using ::testing::HasSubstr;

class CheckedStream : public ::testing::TestWithParam<char const*> {
 protected:
  static constexpr std::size_t chunk = 64 << 10;

  void SetUp() override {
    options.device = &device(GetParam());
    options.chunk_bytes = chunk;
  }

  StreamResult checked(std::filesystem::path const& path) const {
    auto now = options;
    now.verify = folder / "m.json";
    return stream_file(path, histogram(), now);
  }

  /// The chunks that differ from the manifest's.
  std::vector<ChecksumMismatch::Chunk> mismatches(std::filesystem::path const& path) const {
    try {
      checked(path);
    } catch (ChecksumMismatch const& error) {
      EXPECT_EQ(error.path, path.string());
      return error.chunks;
    }
    return {};
  }

  void write_manifest(std::filesystem::path const& path, Checksum checksum = Checksum::xxh3) const {
    auto now = options;
    now.checksum = checksum;
    now.manifest = folder / "m.json";
    stream_file(path, histogram(), now);
  }

  /// What comparing with a manifest of this text says.
  std::string complaint(std::string const& manifest) {
    folder.write("m.json", std::string_view(manifest));
    try {
      checked(folder / "in");
    } catch (IoError const& error) {
      return error.what();
    }
    return "";
  }

  ScratchFolder folder;
  StreamOptions options;
};

TEST_P(CheckedStream, GivesTheChecksumOfEveryChunk) {
  auto const bytes = mixed_bytes(5 * chunk + 123, 1);
  auto const path = folder.write("in", bytes);
  for (auto const checksum : {Checksum::xxh3, Checksum::crc32c}) {
    options.checksum = checksum;
    auto const result = stream_file(path, histogram(), options);
    EXPECT_EQ(result.checksum, checksum);
    EXPECT_EQ(result.checksum_bytes, chunk);
    ASSERT_EQ(result.files.size(), 1U);
    EXPECT_EQ(result.files[0].path, path);
    EXPECT_EQ(result.files[0].bytes, bytes.size());
    ASSERT_EQ(result.files[0].checksums.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
      auto const part = std::span{bytes}.subspan(i * chunk, std::min(chunk, bytes.size() - i * chunk));
      EXPECT_EQ(result.files[0].checksums[i],
                detail::digest_text(checksum, detail::digest_of(checksum, std::as_bytes(part))));
    }
  }
}

TEST_P(CheckedStream, GivesNoneUnlessItIsAsked) {
  auto const result = stream_file(folder.write("in", mixed_bytes(chunk, 1)), histogram(), options);
  EXPECT_EQ(result.checksum, std::nullopt);
  EXPECT_EQ(result.checksum_bytes, 0U);
  EXPECT_TRUE(result.files.at(0).checksums.empty());
}

TEST_P(CheckedStream, AgreesWithItsOwnManifestInChunksOfAnySize) {
  auto const path = folder.write("in", mixed_bytes(5 * chunk + 123, 1));
  for (auto const checksum : {Checksum::xxh3, Checksum::crc32c}) {
    options.chunk_bytes = chunk;
    write_manifest(path, checksum);
    for (std::size_t const size : {chunk / 2 + 1, chunk, 3 * chunk, 100 * chunk}) {
      options.chunk_bytes = size;
      auto const result = checked(path);
      EXPECT_EQ(result.checksum, checksum);
      EXPECT_EQ(result.checksum_bytes, chunk);
      EXPECT_EQ(result.files.at(0).checksums.size(), 6U);
    }
  }
}

TEST_P(CheckedStream, FindsAndNamesEveryFlippedBit) {
  std::mt19937 random{7};
  auto bytes = mixed_bytes(32 * chunk + 5, 2);
  auto const path = folder.write("in", bytes);
  for (auto const checksum : {Checksum::xxh3, Checksum::crc32c}) {
    write_manifest(path, checksum);
    for (int round = 0; round < 3; ++round) {
      auto flipped = bytes;
      std::set<std::size_t> expected;
      for (int i = 0; i < 10; ++i) {
        auto const bit = std::uniform_int_distribution<std::size_t>(0, bytes.size() * 8 - 1)(random);
        flipped[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
        expected.insert(bit / 8 / chunk);
      }
      folder.write("in", flipped);
      options.chunk_bytes = round == 0 ? chunk : 3 * chunk;
      std::set<std::size_t> found;
      for (auto const& each : mismatches(path)) {
        found.insert(each.index);
        EXPECT_EQ(each.offset, each.index * chunk);
        EXPECT_EQ(each.bytes, std::min<std::size_t>(chunk, bytes.size() - each.offset));
        EXPECT_NE(each.expected, each.found);
      }
      EXPECT_EQ(found, expected);
    }
    folder.write("in", bytes);
    options.chunk_bytes = chunk;
  }
}

TEST_P(CheckedStream, AHeaderIsCheckedToo) {
  std::vector<float> const numbers(30'000, 1.5F);
  std::array const shape{std::uint64_t{30'000}};
  auto file = detail::format_npy_header(ElementType::f32, shape);
  auto const header_bytes = file.size();
  file.append(reinterpret_cast<char const*>(numbers.data()), numbers.size() * sizeof(float));
  auto const path = folder.write("in.npy", std::string_view(file));
  write_manifest(path);
  EXPECT_EQ(checked(path).files.at(0).bytes, numbers.size() * sizeof(float));
  file[header_bytes - 2] = '\t';  // what pads it
  folder.write("in.npy", std::string_view(file));
  auto mismatched = [&]() -> std::vector<ChecksumMismatch::Chunk> {
    try {
      return mismatches(path);
    } catch (IoError const& error) {  // a header that is no header any more says so before
      EXPECT_THAT(error.what(), HasSubstr("malformed"));
      return {};
    }
  }();
  if (!mismatched.empty()) {
    ASSERT_EQ(mismatched.size(), 1U);
    EXPECT_EQ(mismatched[0].index, ChecksumMismatch::Chunk::header);
    EXPECT_EQ(mismatched[0].bytes, header_bytes);
  }
}

TEST_P(CheckedStream, NoOutputAppearsWhereTheInputDiffers) {
  auto bytes = mixed_bytes(3 * chunk, 3);
  auto const path = folder.write("in", bytes);
  write_manifest(path);
  bytes[chunk] ^= 1U;
  folder.write("in", bytes);
  options.output = folder / "out";
  options.verify = folder / "m.json";
  EXPECT_THROW(stream_file(path, affine(ElementType::u8, 1, 0), options), ChecksumMismatch);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"in", "m.json"}));
}

TEST_P(CheckedStream, ReadsTheFileOnce) {
  auto const path = folder.write("in", mixed_bytes(64 * chunk, 4));
  options.checksum = Checksum::xxh3;
  stream_file(path, histogram(), options);  // what a first stream reads besides: libraries, the answers' cache
  auto const read_so_far = [] {
    std::ifstream io("/proc/self/io");
    std::string name;
    std::size_t bytes = 0;
    io >> name >> bytes;
    return bytes;
  };
  auto const before = read_so_far();
  stream_file(path, histogram(), options);
  auto const read = read_so_far() - before;
  EXPECT_LT(read, 64 * chunk + chunk);  // 0 where it is mapped
}

TEST_P(CheckedStream, AnotherFilesManifestIsRefused) {
  write_manifest(folder.write("in", mixed_bytes(chunk, 5)));
  auto const longer = folder.write("longer", mixed_bytes(chunk + 1, 5));
  EXPECT_THAT([&] { checked(longer); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("longer: the manifest has no such file")));
  folder.write("in", mixed_bytes(chunk + 1, 5));
  EXPECT_THAT([&] { checked(folder / "in"); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("it has 65537 bytes of data, and the manifest's")));
  options.checksum = Checksum::crc32c;
  EXPECT_THROW(checked(folder / "in"), InvalidArgument);
}

TEST_P(CheckedStream, IsFoundByItsNameInAnotherFolder) {
  write_manifest(folder.write("in", mixed_bytes(chunk, 5)));
  std::filesystem::create_directory(folder / "moved");
  std::filesystem::rename(folder / "in", folder / "moved" / "in");
  EXPECT_EQ(checked(folder / "moved" / "in").checksum, Checksum::xxh3);
}

TEST_P(CheckedStream, FilesOfOneNameAreToldApartByTheirFolders) {
  auto const path_of = [&](char const* outer, char const* inner) {
    std::filesystem::create_directories(folder / outer / inner);
    return folder / outer / inner / "in";
  };
  std::array const paths{path_of("x", "a"), path_of("x", "b")};
  for (std::size_t i = 0; i < paths.size(); ++i)
    folder.write(paths[i].string(), mixed_bytes(chunk, static_cast<unsigned>(10 + i)));
  auto with = options;
  with.manifest = folder / "m.json";
  stream_files(paths, histogram(), with);
  options.verify = folder / "m.json";
  std::filesystem::rename(folder / "x", folder / "y");
  EXPECT_EQ(checked(folder / "y" / "b" / "in").files.size(), 1U);
  EXPECT_EQ(checked(folder / "y" / "a" / "in").files.size(), 1U);
  std::filesystem::rename(folder / "y" / "a" / "in", folder / "in");
  EXPECT_THAT([&] { checked(folder / "in"); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("in: the manifest has several files of that name")));
  std::filesystem::rename(folder / "in", folder / "other");
  EXPECT_THAT([&] { checked(folder / "other"); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("other: the manifest has no such file")));
}

TEST_P(CheckedStream, AFileWhoseNameIsNoUtf8IsFoundInItsManifest) {
  write_manifest(folder.write("in\xff", mixed_bytes(chunk, 5)));
  EXPECT_EQ(checked(folder / "in\xff").checksum, Checksum::xxh3);
}

TEST_P(CheckedStream, NamesThatAreNoUtf8AreToldApart) {
  std::array const names{"bad\xff\xfe", "bad\xfe\xff", "bad\xEF\xBF\xBD\xEF\xBF\xBD"};
  std::vector<std::filesystem::path> paths;
  for (auto const* const name : names) {
    paths.emplace_back(folder.write(name, mixed_bytes(chunk, static_cast<unsigned>(20 + paths.size()))));
  }
  auto with = options;
  with.manifest = folder / "m.json";
  stream_files(paths, histogram(), with);
  auto const manifest = detail::read_manifest(folder / "m.json");
  ASSERT_EQ(manifest.files.size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(manifest.files[i].name, paths[i].string());
    EXPECT_EQ(checked(paths[i]).checksum, Checksum::xxh3);
  }
  std::filesystem::create_directory(folder / "moved");
  std::filesystem::rename(paths[0], folder / "moved" / names[0]);
  EXPECT_EQ(checked(folder / "moved" / names[0]).checksum, Checksum::xxh3);
  EXPECT_EQ(detail::parse_manifest(detail::to_json(manifest), "m.json"), manifest);
}

TEST_P(CheckedStream, RefusesManifestsThatAreNone) {
  folder.write("in", mixed_bytes(10, 6));
  auto const manifest = [](std::string_view files) {
    return R"({"format":"unimem manifest","version":1,"checksum":"crc32c","chunk_bytes":10,"files":[)" +
           std::string(files) + "]}";
  };
  EXPECT_THAT(complaint(""), HasSubstr("no JSON"));
  EXPECT_THAT(complaint("[]"), HasSubstr("no object"));
  EXPECT_THAT(complaint("{}"), HasSubstr("no \"format\""));
  EXPECT_THAT(complaint(R"({"format":"other"})"), HasSubstr("\"format\" is another"));
  EXPECT_THAT(complaint(R"({"format":"unimem manifest","version":2})"), HasSubstr("version 2"));
  EXPECT_THAT(complaint(R"({"format":"unimem manifest","version":1,"checksum":"md5"})"), HasSubstr("'md5'"));
  EXPECT_THAT(complaint(R"({"format":"unimem manifest","version":1,"checksum":"xxh3","chunk_bytes":0,"files":[]})"),
              HasSubstr("no bytes"));
  EXPECT_THAT(complaint(R"({"format":"unimem manifest","version":1,"checksum":"xxh3","chunk_bytes":-1,"files":[]})"),
              HasSubstr("64 bits"));
  EXPECT_THAT(complaint(manifest("")), HasSubstr("the manifest has no such file"));
  EXPECT_THAT(complaint(manifest("1")), HasSubstr("no object"));
  EXPECT_THAT(complaint(manifest(R"({"name":"in","bytes":10,"chunks":[]})")), HasSubstr("has 0 checksums"));
  EXPECT_THAT(complaint(manifest(R"({"name":"in","bytes":18446744073709551615,"chunks":["00000000"]})")),
              HasSubstr("has 1 checksums"));
  for (auto const* const digits : {"f", "fg", "FF", "696e", ""}) {
    EXPECT_THAT(complaint(manifest(R"({"name":"in","name_bytes":")" + std::string(digits) +
                                   R"(","bytes":10,"chunks":["00000000"]})")),
                HasSubstr("\"name_bytes\" '" + std::string(digits) + "' are no bytes"));
  }
  EXPECT_THAT(complaint(manifest(R"({"name":"in","name_bytes":7,"bytes":10,"chunks":["00000000"]})")),
              HasSubstr("\"name_bytes\" is no text"));
  EXPECT_THAT(complaint(manifest(R"({"name":"in","bytes":1e99,"chunks":[]})")), HasSubstr("64 bits"));
  EXPECT_THAT(complaint(manifest(R"({"name":"in","bytes":10,"chunks":["0"]})")), HasSubstr("is no crc32c"));
  EXPECT_THAT(complaint(manifest(R"({"name":"in","bytes":10,"chunks":[7]})")), HasSubstr("is no crc32c"));
  EXPECT_THAT(complaint(manifest(R"({"name":"in","bytes":1e999,"chunks":[]})")), HasSubstr("a number is beyond"));
  EXPECT_THAT(complaint(manifest("") + std::string(1, '\0') + "{"), HasSubstr("a NUL at byte"));
  EXPECT_THAT(complaint(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
}

TEST_P(CheckedStream, EveryTruncatedManifestIsRefused) {
  write_manifest(folder.write("in", mixed_bytes(2 * chunk, 6)));
  auto const whole = folder.read("m.json");
  for (std::size_t length = 0; length + 2 < whole.size(); length += 7) {
    EXPECT_THAT(complaint(whole.substr(0, length)), HasSubstr("no manifest that can be used")) << length;
  }
}

TEST_P(CheckedStream, AManifestReplacesNeitherInputNorOutput) {
  auto const bytes = mixed_bytes(chunk, 6);
  auto const path = folder.write("in", bytes);
  std::filesystem::create_hard_link(path, folder / "link");
  for (auto const* const name : {"in", "link", "../in"}) {
    auto now = options;
    now.manifest = name == std::string("../in") ? folder / "." / "in" : folder / name;
    EXPECT_THROW(stream_file(path, histogram(), now), InvalidArgument) << name;
  }
  options.output = folder / "out";
  options.manifest = folder / "." / "out";
  EXPECT_THROW(stream_file(path, affine(ElementType::u8, 1, 0), options), InvalidArgument);
  options.manifest = folder / "nowhere" / "m.json";
  EXPECT_THROW(stream_file(path, affine(ElementType::u8, 1, 0), options), IoError);
  EXPECT_EQ(folder.read_elements<std::uint8_t>("in"), bytes);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"in", "link"}));
}

TEST_P(CheckedStream, WhatIsWrittenReplacesNoManifestThatIsRead) {
  auto const path = folder.write("in", mixed_bytes(chunk, 6));
  write_manifest(path);
  auto const manifest = folder.read("m.json");
  std::filesystem::create_symlink("m.json", folder / "link");
  options.manifest.clear();
  options.verify = folder / "m.json";
  for (auto const* const name : {"m.json", "link"}) {
    auto now = options;
    now.output = folder / name;
    EXPECT_THAT([&] { stream_file(path, affine(ElementType::u8, 1, 0), now); },
                ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("another file than the manifest")));
    now.output.clear();
    now.manifest = folder / name;
    EXPECT_THROW(stream_file(path, histogram(), now), InvalidArgument) << name;
  }
  EXPECT_EQ(folder.read("m.json"), manifest);
}

TEST_P(CheckedStream, AnEmptyFileHasNoChunks) {
  auto const path = folder.write("in", std::string_view());
  write_manifest(path);
  EXPECT_TRUE(checked(path).files.at(0).checksums.empty());
}

INSTANTIATE_TEST_SUITE_P(Devices, CheckedStream, ::testing::Values("cpu", "sim"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace unimem
