#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>
#include <unimem/stream/tensors.hpp>

#include "stream/tensors_fixture.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

// Files of tensors that are another by the time a tensor is opened, and such that never were any.

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class RefusedTensors : public Tensors {};

TEST_F(RefusedTensors, AFileThatWasReplacedIsStillTheOneThatWasLookedAt) {
  auto const path = model();
  auto const tensors = open_tensors(path);
  folder.write("other.safetensors",
               std::string_view(safetensors_file(R"({"b":{"dtype":"U8","shape":[60],"data_offsets":[0,60]}})",
                                                 std::string(60, 'x'))));
  std::filesystem::rename(folder / "other.safetensors", path);
  EXPECT_EQ(tensors.at("b").open<std::int64_t>(options()).to_vector(), biases);
  EXPECT_EQ(tensors.at("b").open<std::int64_t>(options(FileMode::copy_on_write)).to_vector(), biases);
  EXPECT_THAT(
      refusal<IoError>([&] { static_cast<void>(tensors.at("b").open<std::int64_t>(options(FileMode::read_write))); }),
      HasSubstr("is another file by now"));
  std::filesystem::remove(path);
  EXPECT_THROW(static_cast<void>(tensors.at("b").open<std::int64_t>(options(FileMode::read_write))), IoError);
  EXPECT_EQ(tensors.at("b").open<std::int64_t>(options()).to_vector(), biases);
}

TEST_F(RefusedTensors, AFileThatWasChangedIsRefused) {
  auto const path = model();
  auto const tensors = open_tensors(path);
  auto const overwrite = [&](std::string const& contents) {
    std::filesystem::resize_file(path, 0);
    std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << contents;
    // Whatever the clock of the file system is.
    struct ::timespec const times[2] = {{0, UTIME_OMIT}, {1'000'000'000 + static_cast<::time_t>(contents.size()), 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  auto const was = folder.read("model.safetensors");
  auto other = was;
  other.replace(other.find("[2,3]"), 5, "[3,2]");
  overwrite(other);
  auto const open = [&] { static_cast<void>(tensors.at("layer.0/w").open<float>(options())); };
  EXPECT_THAT(refusal<IoError>(open),
              HasSubstr("has changed since its tensors were looked up, and tensor 'layer.0/w'"));
  EXPECT_EQ(tensors.at("b").open<std::int64_t>(options()).to_vector(), biases) << "is what it was";
  overwrite(was.substr(0, was.size() - 1));
  EXPECT_THAT(refusal<IoError>(open), HasSubstr("its tensors take 41 bytes, and 40 follow it"));
  overwrite(safetensors_file("{}"));
  EXPECT_THAT(refusal<IoError>(open), HasSubstr("has changed"));
  overwrite(was);
  EXPECT_EQ(tensors.at("layer.0/w").open<float>(options()).to_vector(), weights);
}

TEST_F(RefusedTensors, FilesThatCannotBeAreRefused) {
  EXPECT_THAT(failure(folder / "missing.npz"), HasSubstr("missing.npz"));
  std::filesystem::create_directory(folder / "folder.npz");
  EXPECT_THAT(failure(folder / "folder.npz"), HasSubstr("folder.npz"));
  EXPECT_THAT(refusal<InvalidArgument>(
                  [&] { static_cast<void>(open_tensors(folder.write("a.bin", std::string_view("1234")))); }),
              HasSubstr("must be a file ending in .npy, .npz or .safetensors"));
  for (auto const* const name : {"empty.npy", "empty.npz", "empty.safetensors"}) {
    EXPECT_THAT(failure(folder.write(name, std::string_view())), HasSubstr("malformed"));
  }
  EXPECT_THAT(failure(folder.write("short.npy", std::string_view(npy_file("<i8", "(2,)", "1234567")))),
              HasSubstr("announces 16 bytes of data, and 7 follow"));
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += "1, ";
  EXPECT_THAT(failure(folder.write("deep.npy", std::string_view(npy_file("|u1", "(" + ones + ")", "1")))),
              HasSubstr("65 extents, of 64 at most"));
  auto const in_npz =
      failure(folder.write("bad.npz", std::string_view(zip_file({{"good.npy", npy_file("|u1", "(1,)", "1")},
                                                                 {"b\na.npy", npy_file("|u1", "(2,)", "1")}}))));
  EXPECT_THAT(in_npz, HasSubstr("bad.npz#b?a: malformed .npy: its header announces 2 bytes of data, and 1 follow"));
}

TEST_F(RefusedTensors, AMemberOfAnArchiveThatIsNotSupportedLeavesTheOthers) {
  auto fortran = npy_file("|u1", "(1,)", "1");
  fortran.replace(fortran.find("False"), 5, "True ");
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += "1, ";
  std::vector<std::pair<std::string, std::string>> const odd{
      {npy_file("<U2", "()", "12345678"), "dtype '<U2'"},
      {npy_file(">f4", "(1,)", "1234"), "big-endian dtype '>f4'"},
      {npy_file("|u1", "(" + ones + ")", "1"), "65 extents, of 64 at most"},
      {fortran, "Fortran order"}};
  for (auto const& [file, said] : odd) {
    auto const path = folder.write(
        "odd.npz", std::string_view(zip_file({{"a.npy", file}, {"good.npy", npy_file("|u1", "(2,)", "\3\5")}})));
    auto const tensors = open_tensors(path);
    ASSERT_EQ(tensors.size(), 2U);
    EXPECT_TRUE(tensors.at("good").refused.empty());
    EXPECT_EQ(tensors.at("good").open<std::uint8_t>().to_vector(), (std::vector<std::uint8_t>{3, 5}));
    EXPECT_TRUE(tensors.at("a").dtype.empty());
    auto const expected = "odd.npz#a: unsupported .npy: " + said;
    EXPECT_THAT(expected, HasSubstr(tensors.at("a").refused));
    EXPECT_THAT([&] { static_cast<void>(tensors.at("a").open<std::uint8_t>()); },
                ::testing::ThrowsMessage<IoError>(HasSubstr(expected)));
    EXPECT_EQ(stream_file(path.string() + "#good", histogram()).bytes, 2U);
    EXPECT_THAT([&] { static_cast<void>(stream_file(path.string() + "#a", histogram())); },
                ::testing::ThrowsMessage<IoError>(HasSubstr(expected)));
  }
}

/// The most that has been resident, from a moment on.
std::size_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::size_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1'024;
  }
  ADD_FAILURE() << "/proc/self/status has no VmHWM";
  return 0;
}
void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

TEST_F(RefusedTensors, ALyingHeaderIsRefusedBeforeMemoryIsTaken) {
  auto const sparse = [&](std::string_view name, std::string const& front) {
    auto path = folder.write(name, std::string_view(front));
    std::filesystem::resize_file(path, 8 * GiB);
    return path;
  };
  std::vector const paths{
      folder.write("a.safetensors", std::string_view(little_endian(99'999'999, 8) + "{}")),
      folder.write("b.safetensors", std::string_view(little_endian(~0ULL, 8) + "{}")),
      sparse("c.safetensors", little_endian(99'999'999, 8)),
      sparse("d.safetensors", little_endian(4 * GiB, 8) + "{}"),
      sparse("e.npy", std::string("\x93NUMPY\2\0", 8) + little_endian(2 * GiB, 4)),
      sparse("f.npz", "PK\3\4"),
      folder.write("g.npz", std::string_view(zip_file({{"a.npy", ""}}, {.zip64 = true, .more_entries = 1ULL << 32}))),
      folder.write("h.npy", std::string_view(npy_file("<f8", "(4611686018427387904,)", "12345678"))),
      folder.write("i.npy", std::string_view(npy_file("<f8", "(1073741824,)", "12345678"))),
  };
  for (auto const& path : paths) {
    forget_peak();
    auto const before = peak_bytes();
    EXPECT_THAT(failure(path), StartsWith(path.string() + ": malformed")) << path;
    EXPECT_LT(peak_bytes(), before + 4 * MiB) << path;
  }
}

}  // namespace
}  // namespace unimem::testing
