#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>
#include <unimem/stream/tensors.hpp>

#include "stream/tensors_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

// Streams over one tensor of a file, by FILE#NAME.

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TensorStreams : public Tensors {
 protected:
  [[nodiscard]] static StreamOptions on_cpu() {
    StreamOptions made;
    made.device = &device("cpu");
    return made;
  }
};

TEST_F(TensorStreams, AStreamTakesOneByItsName) {
  auto const path = model();
  for (auto* const on : {&device("cpu"), &sim}) {
    StreamOptions made;
    made.device = on;
    auto const result = stream_file(path.string() + "#layer.0/w", statistics(), made);
    EXPECT_EQ(result.element, ElementType::f32);
    EXPECT_EQ(result.bytes, 24U);
    auto const& found = std::get<StatisticsResult>(result.result);
    EXPECT_EQ(found.count, 6U);
    EXPECT_EQ(std::get<double>(found.min), -2.0);
    EXPECT_EQ(std::get<double>(found.max), double{1e30F});
    auto const whole = stream_file(path.string() + "#b", statistics(ElementType::i64), made);
    EXPECT_EQ(std::get<std::int64_t>(std::get<StatisticsResult>(whole.result).max), 1LL << 62);

    made.output = folder / "out.npy";
    static_cast<void>(stream_file(path.string() + "#layer.0/w", affine({}, 2, 0), made));
    auto const out = open_tensors(folder / "out.npy").at("out");
    EXPECT_THAT(out.shape, ElementsAre(2, 3));
    auto expected = weights;
    for (auto& x : expected) x *= 2;
    EXPECT_EQ(out.open<float>(options()).to_vector(), expected);
  }
  folder.write("some.npz", std::string_view(zip_file({{"w.npy", npy_file("<f4", "(2, 3)", bytes_of(weights))}})));
  EXPECT_EQ(stream_file(folder / "some.npz#w", statistics(), on_cpu()).bytes, 24U);
  folder.write("w.npy", std::string_view(npy_file("<f4", "(2, 3)", bytes_of(weights))));
  EXPECT_EQ(stream_file(folder / "w.npy#w", statistics(), on_cpu()).bytes, 24U);
}

TEST_F(TensorStreams, AWholeArchiveIsTakenOnlyByWhoeverNamesAType) {
  auto const path = model();
  folder.write("some.npz", std::string_view(zip_file({{"w.npy", npy_file("<f4", "(2, 3)", bytes_of(weights))}})));
  for (auto const& archive : {path, std::filesystem::path(folder / "some.npz")}) {
    for (auto const& kernel : {histogram(), statistics(), affine({}, 1, 0)}) {
      EXPECT_THAT(refusal<InvalidArgument>([&] { stream_file(archive, kernel, on_cpu()); }),
                  AllOf(HasSubstr("path"), HasSubstr(archive.string()), HasSubstr("FILE#NAME"),
                        HasSubstr("u8: its raw bytes")));
    }
    auto raw = on_cpu();
    raw.element = ElementType::u8;
    auto const bytes = std::filesystem::file_size(archive);
    EXPECT_EQ(stream_file(archive, histogram(), raw).bytes, bytes);
    EXPECT_EQ(stream_file(archive, statistics(), raw).bytes, bytes);
    EXPECT_EQ(stream_file(archive, statistics(ElementType::u8), on_cpu()).bytes, bytes);
  }
  folder.write("plain.npz#w", std::string_view("12345"));
  EXPECT_EQ(stream_file(folder / "plain.npz#w", histogram(), on_cpu()).bytes, 5U);
}

TEST_F(TensorStreams, AStreamRefusesWhatItCannotTake) {
  auto const path = model();
  auto const with = [&](std::string const& name) { return path.string() + "#" + name; };
  EXPECT_THAT(refusal<NotFound>([&] { stream_file(with("v"), statistics(), on_cpu()); }),
              HasSubstr("no tensor 'v': there are 'b', 'flag', 'layer.0/w'; in " + path.string()));
  EXPECT_THAT(refusal<IoError>([&] { stream_file(with("flag"), statistics(), on_cpu()); }),
              HasSubstr("tensor 'flag' is of bool, of which a stream knows nothing"));
  EXPECT_THAT(refusal<IoError>([&] { stream_file(with("b"), statistics(ElementType::f64), on_cpu()); }),
              HasSubstr("it holds i64, not f64"));
  EXPECT_THAT(refusal<IoError>([&] { stream_file(folder / "missing.npz#w", statistics(), on_cpu()); }),
              HasSubstr("missing.npz: cannot open"));
  auto made = on_cpu();
  made.output = path;
  EXPECT_THROW(stream_file(with("layer.0/w"), affine({}, 1, 0), made), Error);
  EXPECT_EQ(open_tensors(path).size(), 3U);
}

TEST_F(TensorStreams, AFileWhoseOwnNameHasTheSignIsThatFile) {
  folder.write("w.npz", std::string_view(zip_file(
                            {{"a#b.npy", npy_file("|u1", "(1,)", "1")}, {"a.npy", npy_file("|u1", "(3,)", "123")}})));
  auto const bytes = [&](std::string const& name) { return stream_file(folder / name, histogram(), on_cpu()).bytes; };
  EXPECT_EQ(bytes("w.npz#a#b"), 1U);
  EXPECT_EQ(bytes("w.npz#a"), 3U);
  folder.write("w.npz#a", std::string_view("12345"));
  EXPECT_EQ(bytes("w.npz#a"), 5U);
  folder.write("v#1.npz", std::string_view(zip_file({{"a.npy", npy_file("|u1", "(2,)", "12")}})));
  EXPECT_EQ(bytes("v#1.npz#a"), 2U);
  folder.write("u.npz#1.npz", std::string_view(zip_file({{"a.npy", npy_file("|u1", "(4,)", "1234")}})));
  EXPECT_EQ(bytes("u.npz#1.npz#a"), 4U);
  folder.write("data#1", std::string_view("123456"));
  EXPECT_EQ(bytes("data#1"), 6U);
}

}  // namespace
}  // namespace unimem::testing
