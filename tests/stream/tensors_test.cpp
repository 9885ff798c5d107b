#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/stream/tensors.hpp>

#include "stream/file_buffer_fixture.hpp"
#include "stream/tensor_type.hpp"
#include "stream/tensors_fixture.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <complex>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Tensors, OfASafetensorsAreFoundByTheirNames) {
  auto const path = model();
  auto const tensors = open_tensors(path);
  ASSERT_EQ(tensors.size(), 3U);
  auto const& w = tensors.at("layer.0/w");
  EXPECT_EQ(w.name, "layer.0/w");
  EXPECT_EQ(w.dtype, "float32");
  EXPECT_EQ(w.element_bytes, 4U);
  EXPECT_THAT(w.shape, ElementsAre(2, 3));
  EXPECT_EQ(w.path, path);
  EXPECT_EQ(w.bytes, 24U);
  EXPECT_EQ(w.offset, std::filesystem::file_size(path) - 40);
  EXPECT_EQ(tensors.at("flag").dtype, "bool");
  EXPECT_THAT(tensors.at("flag").shape, IsEmpty());
  EXPECT_THAT(read_tensor_metadata(path), ElementsAre(std::pair("format", "pt")));

  auto const buffer = w.open<float>(options());
  EXPECT_EQ(buffer.name(), "layer.0/w");
  EXPECT_THAT(buffer.shape(), ElementsAre(2, 3));
  EXPECT_EQ(buffer.to_vector(), weights);
  auto const scalar = tensors.at("flag").open<bool>(options());
  EXPECT_THAT(scalar.shape(), IsEmpty());
  EXPECT_TRUE(scalar.at(0));
  auto named = options();
  named.name = "mine";
  EXPECT_EQ(w.open<float>(named).name(), "mine");
}

TEST_F(Tensors, OfAnNpzAreFoundByTheirNames) {
  auto const path = folder.write(
      "some.npz", std::string_view(zip_file({{"w.npy", npy_file("<f4", "(2, 3)", bytes_of(weights))},
                                             {"b.npy", npy_file("<i8", "(2,)", bytes_of(biases)), 0, 0, true},
                                             {"notes.txt", "no array"},
                                             {"none.npy", npy_file("<c16", "(0, 7)", "")}})));
  auto const tensors = open_tensors(path);
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors.at("w").open<float>(options()).to_vector(), weights);
  EXPECT_EQ(tensors.at("b").open<std::int64_t>(options()).to_vector(), biases);
  auto const none = tensors.at("none").open<std::complex<double>>(options());
  EXPECT_THAT(none.shape(), ElementsAre(0, 7));
  EXPECT_THAT(none.to_vector(), IsEmpty());
  EXPECT_THAT(read_tensor_metadata(path), IsEmpty());
}

TEST_F(Tensors, AnNpyIsOneThatIsCalledAsItsFile) {
  auto const path = folder.write("a.b.npy", std::string_view(npy_file("<i8", "(1, 2)", bytes_of(biases))));
  auto const tensors = open_tensors(path);
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors.at("a.b").open<std::int64_t>(options()).to_vector(), biases);
  EXPECT_EQ(tensors.at("a.b").offset, 128U);
}

TEST_F(Tensors, EveryTypeArrivesOnEitherSide) {
  std::mt19937 random{2026};
  std::string json = "{";
  std::vector<ZipMember> members;
  std::string data;
  std::map<std::string, std::string> expected;
  for (auto const& type : detail::tensor_types()) {
    std::string bytes(5 * type.bytes, '\0');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    if (!type.safetensors.empty()) {
      json += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[5],"data_offsets":[{},{}]}})", json.size() == 1 ? "" : ",",
                          type.name, type.safetensors, data.size(), data.size() + bytes.size());
      data += bytes;
      expected[fmt::format("all.safetensors#{}", type.name)] = bytes;
    }
    if (!type.npy.empty()) {
      members.push_back({fmt::format("{}.npy", type.name), npy_file(fmt::format("<{}", type.npy), "(5,)", bytes)});
      expected[fmt::format("all.npz#{}", type.name)] = bytes;
    }
  }
  folder.write("all.safetensors", std::string_view(safetensors_file(json + "}", data)));
  folder.write("all.npz", std::string_view(zip_file(members)));
  std::size_t opened = 0;
  for (auto const* const file : {"all.safetensors", "all.npz"}) {
    for (auto const& [name, tensor] : open_tensors(folder / file)) {
      auto const& bytes = expected.at(fmt::format("{}#{}", file, name));
      ASSERT_EQ(tensor.dtype, name);
      ASSERT_EQ(tensor.bytes, bytes.size());
      // By its bytes, whatever they are.
      auto one = options();
      one.offset = tensor.offset;
      one.count = tensor.bytes;
      EXPECT_EQ(bytes_of(from_file<std::uint8_t>(tensor.path, one).to_vector()), bytes) << name;
      auto const open = [&]<class T>(T) {
        auto const buffer = tensor.open<T>(options());
        EXPECT_EQ(bytes_of(buffer.to_vector()), bytes) << name;
        auto const there = buffer.device_view(sim);
        EXPECT_EQ(std::memcmp(there.data(), bytes.data(), bytes.size()), 0) << name << " on the device";
      };
      if (tensor.element_bytes == 1) open(std::byte{});
      if (tensor.element_bytes == 2) open(std::array<std::byte, 2>{});
      if (tensor.element_bytes == 4) open(std::array<std::byte, 4>{});
      if (tensor.element_bytes == 8) open(std::array<std::byte, 8>{});
      if (tensor.element_bytes == 16) open(std::complex<double>{});
      ++opened;
    }
  }
  EXPECT_EQ(opened, expected.size());
  EXPECT_EQ(opened, 19U + 14U);
}

TEST_F(Tensors, LieAlignedInMemoryWhereverTheyAreInTheFile) {
  for (std::size_t front = 0; front < 72; ++front) {
    auto const path = folder.write("a.safetensors",
                                   std::string_view(safetensors_file(
                                       fmt::format(R"({{"front":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}},)"
                                                   R"("w":{{"dtype":"F32","shape":[6],"data_offsets":[{},{}]}}}})",
                                                   front, front, front, front + 24),
                                       std::string(front, 'x') + bytes_of(weights))));
    auto const buffer = open_tensors(path).at("w").open<float>(options());
    auto const host = buffer.host_view();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host.data()) % 64, 0U) << front;
    EXPECT_TRUE(std::ranges::equal(host, weights)) << front;
  }
}

TEST_F(Tensors, AnotherTypeIsRefusedByBothNames) {
  auto const path =
      folder.write("t.npz", std::string_view(zip_file({{"f4.npy", npy_file("<f4", "(1,)", "1234")},
                                                       {"f8.npy", npy_file("<f8", "(1,)", "12345678")},
                                                       {"i4.npy", npy_file("<i4", "(1,)", "1234")},
                                                       {"u1.npy", npy_file("|u1", "(1,)", "1")},
                                                       {"b1.npy", npy_file("|b1", "(1,)", "1")},
                                                       {"f2.npy", npy_file("<f2", "(1,)", "12")},
                                                       {"c8.npy", npy_file("<c8", "(1,)", "12345678")},
                                                       {"c16.npy", npy_file("<c16", "(1,)", "1234567812345678")}})));
  auto const tensors = open_tensors(path);
  auto const refused = [&]<class T>(char const* name, T) {
    return refusal<InvalidArgument>([&] { static_cast<void>(tensors.at(name).open<T>()); });
  };
  EXPECT_THAT(refused("i4", 1.0F),
              HasSubstr("'floating-point number of 4 bytes': must be one for int32 of 4 bytes, as tensor 'i4' of"));
  EXPECT_THAT(refused("f4", 1.0), HasSubstr("'floating-point number of 8 bytes': must be one for float32 of 4 bytes"));
  EXPECT_THAT(refused("f4", 1), HasSubstr("'signed integer of 4 bytes'"));
  EXPECT_THAT(refused("i4", 1U), HasSubstr("'unsigned integer of 4 bytes'"));
  EXPECT_THAT(refused("u1", true), HasSubstr("'bool': must be one for uint8 of 1 bytes"));
  EXPECT_THAT(refused("c8", 1.0), HasSubstr("for complex64"));
  EXPECT_THAT(refused("c8", std::uint64_t{1}), HasSubstr("for complex64"));
  EXPECT_THAT(refused("c16", 1.0L), HasSubstr("for complex128"));
  EXPECT_THAT(refused("c16", std::complex<float>()), HasSubstr("'type of 8 bytes': must be one for complex128"));
  EXPECT_THAT(refused("f2", std::int16_t{1}), HasSubstr("for float16"));

  EXPECT_EQ(tensors.at("f2").open<std::uint16_t>(options()).at(0), 0x3231);
  EXPECT_EQ(tensors.at("b1").open<std::uint8_t>(options()).at(0), '1');
  EXPECT_EQ(tensors.at("u1").open<char>(options()).at(0), '1');
  EXPECT_EQ(tensors.at("u1").open<std::byte>(options()).at(0), std::byte{'1'});
  EXPECT_EQ((tensors.at("f4").open<std::array<char, 4>>(options()).at(0)), (std::array{'1', '2', '3', '4'}));
}

TEST_F(Tensors, OffsetAndCountAreTheirOwn) {
  auto const tensors = open_tensors(model());
  auto made = options();
  made.offset = 4;
  EXPECT_THAT(refusal<InvalidArgument>([&] { static_cast<void>(tensors.at("b").open<std::int64_t>(made)); }),
              HasSubstr("offset '4'"));
  made.offset = 0;
  made.count = 1;
  EXPECT_THAT(refusal<InvalidArgument>([&] { static_cast<void>(tensors.at("b").open<std::int64_t>(made)); }),
              HasSubstr("count '1'"));
}

TEST_F(Tensors, ThatNobodyMadeAreRefused) {
  EXPECT_THROW(static_cast<void>(Tensor().open<int>()), InvalidArgument);
  auto tensor = open_tensors(model()).at("b");
  tensor.shape = {3};
  EXPECT_THROW(static_cast<void>(tensor.open<std::int64_t>()), InvalidArgument);
  tensor.shape = {1ULL << 62, 8};
  EXPECT_THROW(static_cast<void>(tensor.open<std::int64_t>()), InvalidArgument);
  tensor.shape = {2};
  tensor.dtype = "int65";
  EXPECT_THROW(static_cast<void>(tensor.open<std::int64_t>()), InvalidArgument);
  tensor.dtype = "int64";
  EXPECT_EQ(tensor.open<std::int64_t>(options()).to_vector(), biases);
}

TEST_F(Tensors, NothingIsReadBeforeItIsLookedAt) {
  constexpr std::uint64_t large = 5 * GiB;
  constexpr std::uint64_t words = large / sizeof(std::uint32_t);
  auto const sparse = [&](std::string_view name, std::string const& front, std::string const& behind) {
    auto const path = folder / name;
    std::ofstream file(path, std::ios::binary);
    file << front;
    file.seekp(static_cast<std::streamoff>(front.size() + large - 4));
    file << "last" << behind;
    return path;
  };
  auto const header = npy_file("<u4", fmt::format("({},)", words), "");
  // The zip with the contents left out, which ends where the sparse bytes would begin.
  auto const member = [&](std::string const& name) {
    return "PK\3\4" + little_endian(45, 2) + std::string(12, '\0') + little_endian(0xFFFFFFFF, 4) +
           little_endian(0xFFFFFFFF, 4) + little_endian(name.size(), 2) + little_endian(20, 2) + name +
           little_endian(1, 2) + little_endian(16, 2) + little_endian(header.size() + large, 8) +
           little_endian(header.size() + large, 8) + header;
  };
  auto const front = member("w.npy");
  auto const size = little_endian(header.size() + large, 8);
  auto const directory = "PK\1\2" + little_endian(45, 2) + little_endian(45, 2) + std::string(12, '\0') +
                         std::string(8, '\377') + little_endian(5, 2) + little_endian(20, 2) + std::string(14, '\0') +
                         "w.npy" + little_endian(1, 2) + little_endian(16, 2) + size + size;
  auto const begin = front.size() + large;
  auto const end = "PK\6\6" + little_endian(44, 8) + little_endian(45, 2) + little_endian(45, 2) +
                   std::string(8, '\0') + little_endian(1, 8) + little_endian(1, 8) +
                   little_endian(directory.size(), 8) + little_endian(begin, 8) + "PK\6\7" + std::string(4, '\0') +
                   little_endian(begin + directory.size(), 8) + little_endian(1, 4) + "PK\5\6" + std::string(4, '\0') +
                   std::string(12, '\377') + std::string(2, '\0');
  std::vector const paths{sparse("large.safetensors",
                                 safetensors_file(fmt::format(
                                     R"({{"w":{{"dtype":"U32","shape":[{}],"data_offsets":[0,{}]}}}})", words, large)),
                                 ""),
                          sparse("w.npy", header, ""), sparse("large.npz", front, directory + end)};
  std::uint64_t looked_at = 0;
  for (auto const& path : paths) {
    auto const before = system_count_of("rchar");
    auto const tensors = open_tensors(path);
    auto const buffer = tensors.at("w").open<std::uint32_t>(options());
    EXPECT_LT(system_count_of("rchar") - before, 8 * KiB) << path;
    EXPECT_EQ(manager.statistics().file_read_bytes, looked_at);
    EXPECT_EQ(buffer.size(), words);
    auto const last = buffer.slice(words - 1'000, 1'000);
    auto const found = last.to_vector();
    EXPECT_EQ(found[0], 0U);
    EXPECT_EQ(std::memcmp(&found[999], "last", 4), 0) << path;
    looked_at += 4'000;
    EXPECT_EQ(manager.statistics().file_read_bytes, looked_at) << path;
  }
}

TEST_F(Tensors, ModesAreThoseOfFiles) {
  auto const path = model();
  auto const before = folder.read("model.safetensors");
  auto const tensors = open_tensors(path);
  auto read = tensors.at("b").open<std::int64_t>(options());
  EXPECT_THROW(read.fill(1), UnsupportedOperation);
  auto copied = tensors.at("b").open<std::int64_t>(options(FileMode::copy_on_write));
  copied.fill(1);
  copied.flush();
  EXPECT_EQ(folder.read("model.safetensors"), before);
  auto written = tensors.at("b").open<std::int64_t>(options(FileMode::read_write));
  written.fill(5);
  written.flush();
  auto const after = folder.read("model.safetensors");
  EXPECT_EQ(after.substr(0, after.size() - 16), before.substr(0, before.size() - 16));
  EXPECT_EQ(after.substr(after.size() - 16), bytes_of(std::vector<std::int64_t>{5, 5}));
  // The file has changed, and what is in it has not.
  EXPECT_EQ(tensors.at("layer.0/w").open<float>(options()).to_vector(), weights);
  EXPECT_EQ(tensors.at("b").open<std::int64_t>(options()).to_vector(), (std::vector<std::int64_t>{5, 5}));
  auto again = tensors.at("layer.0/w").open<float>(options(FileMode::read_write));
  again.fill(2);
  again.flush();
  EXPECT_EQ(tensors.at("layer.0/w").open<float>(options()).to_vector(), std::vector<float>(6, 2));
}

TEST_F(Tensors, ArchivesAreNotWrittenTo) {
  auto const path =
      folder.write("some.npz", std::string_view(zip_file({{"w.npy", npy_file("<f4", "(2, 3)", bytes_of(weights))}})));
  auto const before = folder.read("some.npz");
  auto const tensors = open_tensors(path);
  auto const said = refusal<UnsupportedOperation>(
      [&] { static_cast<void>(tensors.at("w").open<float>(options(FileMode::read_write))); });
  EXPECT_THAT(said, HasSubstr("some.npz"));
  EXPECT_THAT(said, HasSubstr("a checksum of each array"));
  auto copied = tensors.at("w").open<float>(options(FileMode::copy_on_write));
  copied.fill(1);
  copied.flush();
  EXPECT_EQ(folder.read("some.npz"), before);
}

TEST_F(Tensors, AsManyAsThereAreTakeOneDescriptor) {
  std::vector<ZipMember> members;
  for (int i = 0; i < 300; ++i) {
    members.push_back({fmt::format("{}.npy", i), npy_file("<i4", "(1,)", bytes_of(std::vector{i}))});
  }
  auto const path = folder.write("many.npz", std::string_view(zip_file(members)));
  auto const descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  auto const before = descriptors();
  std::vector<UnifiedBuffer<int>> buffers;
  for (auto const& [name, tensor] : open_tensors(path)) buffers.push_back(tensor.open<int>(options()));
  EXPECT_EQ(descriptors(), before + 1);
  for (auto const& buffer : buffers) EXPECT_EQ(std::to_string(buffer.at(0)), buffer.name());
  buffers.clear();
  EXPECT_EQ(descriptors(), before);
}

TEST_F(Tensors, AreOpenedByManyThreadsAtOnce) {
  auto const path = model();
  auto const tensors = open_tensors(path);
  // Each thread finds the file changed, and what is in it not.
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  std::vector<std::vector<std::int64_t>> found(8);
  {
    std::vector<std::jthread> threads;
    for (auto& one : found) {
      threads.emplace_back(
          [&] { one = tensors.at("b").open<std::int64_t>(options(FileMode::read_write)).to_vector(); });
    }
  }
  for (auto const& one : found) EXPECT_EQ(one, biases);
}

}  // namespace
}  // namespace unimem::testing
