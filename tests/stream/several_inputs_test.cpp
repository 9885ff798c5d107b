#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/stream/stream_file.hpp>

#include "stream/npy.hpp"
#include "stream/scratch_folder.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

// Several files as one, and pipes.

namespace unimem {
namespace {

using ::testing::HasSubstr;

class SeveralInputs : public ::testing::TestWithParam<char const*> {
 protected:
  static constexpr std::size_t chunk = 64 << 10;

  void SetUp() override {
    options.device = &device(GetParam());
    options.chunk_bytes = chunk;
  }

  /// Writes `bytes` into the pipe, as they can be taken, in pieces of odd sizes.
  [[nodiscard]] static std::jthread writer(std::filesystem::path path, std::vector<std::uint8_t> bytes) {
    return std::jthread([path = std::move(path), bytes = std::move(bytes)] {
      int const pipe = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      ASSERT_GE(pipe, 0);
      for (std::size_t at = 0, piece = 1; at < bytes.size(); piece = piece * 5 % 70'001) {
        auto const written = ::write(pipe, bytes.data() + at, std::min(piece, bytes.size() - at));
        if (written <= 0) break;
        at += static_cast<std::size_t>(written);
      }
      ::close(pipe);
    });
  }
  [[nodiscard]] static std::string text_of(std::vector<std::uint8_t> const& bytes) {
    return {bytes.begin(), bytes.end()};
  }
  std::filesystem::path pipe(char const* name) {
    EXPECT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
    return folder / name;
  }

  ScratchFolder folder;
  StreamOptions options;
};

TEST_P(SeveralInputs, AreTakenAsOne) {
  std::vector<std::uint8_t> all;
  std::vector<std::filesystem::path> paths;
  std::vector<std::size_t> const sizes{0, 100'001, 1, 0, chunk, 3 * chunk, 0, 77, 0};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    auto const bytes = mixed_bytes(sizes[i], static_cast<unsigned>(i));
    all.insert(all.end(), bytes.begin(), bytes.end());
    paths.push_back(folder.write("in" + std::to_string(i), bytes));
  }
  auto const one = stream_file(folder.write("all", all), histogram(), options);
  options.checksum = Checksum::xxh3;
  std::vector<std::uint64_t> told;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    told.push_back(done);
    EXPECT_EQ(total, all.size());
  };
  auto const several = stream_files(paths, histogram(), options);
  EXPECT_EQ(std::get<HistogramResult>(several.result).counts, std::get<HistogramResult>(one.result).counts);
  EXPECT_EQ(several.bytes, all.size());
  EXPECT_EQ(several.chunks, one.chunks);
  EXPECT_EQ(told.front(), 0U);
  EXPECT_EQ(told.back(), all.size());
  ASSERT_EQ(several.files.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(several.files[i].bytes, sizes[i]);
    EXPECT_EQ(several.files[i].checksums.size(), (sizes[i] + chunk - 1) / chunk) << i;
  }
  options.output = folder / "out";
  stream_files(paths, affine(ElementType::u8, 1, 0), options);
  EXPECT_EQ(folder.read("out"), text_of(all));
}

TEST_P(SeveralInputs, MustHoldTheSame) {
  std::array const shape{std::uint64_t{1}};
  auto const floats = folder.write("a.npy", detail::format_npy_header(ElementType::f32, shape) + "1234");
  auto const words = folder.write("b.npy", detail::format_npy_header(ElementType::u16, shape) + "12");
  std::array const both{floats, words};
  EXPECT_THAT([&] { stream_files(both, histogram(), options); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("it holds u16, and a file before it f32")));
  std::array const odd{floats, folder.write("odd", std::string_view("123"))};
  EXPECT_THAT([&] { stream_files(odd, histogram(), options); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("odd: its 3 bytes are no multiple of the 4 of an f32")));
  EXPECT_THROW(stream_files({}, histogram(), options), InvalidArgument);
}

TEST_P(SeveralInputs, AFileThatIsReplacedMeanwhileIsAnError) {
  std::array const paths{folder.write("first", mixed_bytes(4 * chunk, 1)), folder.write("second", mixed_bytes(100, 2))};
  options.progress = [&](std::uint64_t done, std::uint64_t) {
    if (done != 0) return;
    folder.write("other", mixed_bytes(100, 3));
    std::filesystem::rename(folder / "other", folder / "second");
  };
  EXPECT_THAT([&] { stream_files(paths, histogram(), options); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("another file is in its place")));
}

TEST_P(SeveralInputs, AFileThatIsChangedInPlaceMeanwhileIsAnError) {
  std::array const paths{folder.write("first", mixed_bytes(4 * chunk, 1)), folder.write("second", mixed_bytes(100, 2))};
  auto const written = std::filesystem::last_write_time(paths[1]);
  options.progress = [&](std::uint64_t done, std::uint64_t) {
    if (done != 0) return;
    folder.write("second", mixed_bytes(100, 3));
    std::filesystem::last_write_time(paths[1], written + std::chrono::seconds(1));
  };
  EXPECT_THAT([&] { stream_files(paths, histogram(), options); },
              ::testing::ThrowsMessage<IoError>(HasSubstr("second: it was changed since the stream began")));
}

TEST_P(SeveralInputs, ComeThroughPipes) {
  for (std::size_t const size : {std::size_t{0}, std::size_t{1}, chunk, 5 * chunk + 3}) {
    auto const bytes = mixed_bytes(size, 9);
    auto const path = pipe("pipe");
    options.output = folder / "out";
    std::vector<std::uint64_t> totals;
    options.progress = [&](std::uint64_t, std::uint64_t total) { totals.push_back(total); };
    auto const written = writer(path, bytes);
    auto const result = stream_file(path, affine(ElementType::u8, 1, 0), options);
    EXPECT_EQ(result.bytes, size);
    EXPECT_EQ(result.files.at(0).bytes, size);
    EXPECT_EQ(std::get<MappingResult>(result.result).elements, size);
    EXPECT_EQ(folder.read("out"), text_of(bytes));
    EXPECT_THAT(totals, ::testing::Each(0U));
    std::filesystem::remove(path);
  }
}

TEST_P(SeveralInputs, FilesMayStandBesidePipes) {
  auto const first = mixed_bytes(100'000, 1), second = mixed_bytes(200'000, 2), third = mixed_bytes(3, 3);
  std::array const paths{folder.write("first", first), pipe("second"), folder.write("third", third)};
  auto const written = writer(paths[1], second);
  options.output = folder / "out";
  options.checksum = Checksum::crc32c;
  auto const result = stream_files(paths, affine(ElementType::u8, 1, 0), options);
  EXPECT_EQ(folder.read("out"), text_of(first) + text_of(second) + text_of(third));
  EXPECT_EQ(result.files.at(1).checksums.size(), 4U);
}

TEST_P(SeveralInputs, APipeOfHalfAnElementIsAnError) {
  auto const path = pipe("pipe");
  auto const written = writer(path, mixed_bytes(chunk + 2, 1));
  options.output = folder / "out";
  try {
    stream_file(path, affine(ElementType::f32, 1, 0), options);
    ADD_FAILURE() << "it went through";
  } catch (IoError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("pipe: its 65538 bytes are no multiple of the 4 of an f32"));
  }
  EXPECT_EQ(folder.names(), (std::set<std::string>{"pipe"}));
}

TEST_P(SeveralInputs, WaitingForAPipeCanBeCancelled) {
  auto const path = pipe("pipe");
  std::stop_source stop;
  options.cancel = stop.get_token();
  std::jthread const later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    stop.request_stop();
  });
  EXPECT_THAT([&] { stream_file(path, histogram(), options); },
              ::testing::ThrowsMessage<StreamCancelled>(HasSubstr("cancelled after 0 bytes")));
}

TEST_P(SeveralInputs, ACallerIsAskedWhileAPipeIsWaitedFor) {
  struct Interrupted {};
  auto const path = pipe("pipe");
  std::vector<std::uint64_t> told;
  options.progress = [&](std::uint64_t done, std::uint64_t) { told.push_back(done); };
  int calls = 0;
  options.check_interrupt = [&, caller = std::this_thread::get_id()] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    if (++calls == 3) throw Interrupted{};
  };
  EXPECT_THROW(stream_file(path, histogram(), options), Interrupted);
  EXPECT_THAT(told, ::testing::ElementsAre(0U)) << "no chunk has come";
}

TEST_P(SeveralInputs, ACallerIsAskedAtEachChunk) {
  struct Interrupted {};
  auto const path = folder.write("in", mixed_bytes(4 * chunk, 1));
  options.output = folder / "out";
  std::uint64_t last = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t) { last = done; };
  options.check_interrupt = [&] {
    if (last != 0) throw Interrupted{};
  };
  EXPECT_THROW(stream_file(path, affine(ElementType::u8, 1, 0), options), Interrupted);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"in"}));
}

TEST_P(SeveralInputs, APipeIsNotReadPastThePageCache) {
  auto const path = pipe("pipe");
  for (auto const access : {FileAccess::direct, FileAccess::mapped}) {
    options.access = access;
    EXPECT_THROW(stream_file(path, histogram(), options), UnsupportedOperation);
  }
}

TEST_P(SeveralInputs, APipeAgreesWithTheManifestOfItsFile) {
  auto const bytes = mixed_bytes(3 * chunk + 1, 4);
  options.manifest = folder / "m.json";
  auto const file = folder.write("in", bytes);
  stream_file(file, histogram(), options);
  options.manifest.clear();
  options.verify = folder / "m.json";
  EXPECT_EQ(stream_file(file, histogram(), options).bytes, bytes.size()) << "or nobody opens the pipe";
  auto const path = pipe("pipe");
  {
    auto const written = writer(path, bytes);
    EXPECT_EQ(stream_file(path, histogram(), options).bytes, bytes.size());
  }
  auto const written = writer(path, {bytes.begin(), bytes.end() - 1});
  EXPECT_THROW(stream_file(path, histogram(), options), IoError);
}

INSTANTIATE_TEST_SUITE_P(Devices, SeveralInputs, ::testing::Values("cpu", "sim"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace unimem
