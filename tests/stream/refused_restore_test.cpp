#include <unimem/core/error.hpp>
#include <unimem/stream/checksum_mismatch.hpp>

#include "stream/save_fixture.hpp"

#include <array>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

// What no buffers are filled from, and that it leaves them as they were.

namespace unimem::testing {
namespace {

class RefusedRestore : public Saving {
 protected:
  void SetUp() override {
    a.copy_from(words(1'000, 1));
    b.copy_from(words(1'000, 2));
    save(manager, path);
    a.fill(7U);
    b.fill(8U);
  }
  void expect_unchanged() {
    EXPECT_EQ(a.to_vector(), std::vector<Word>(1'000, 7U));
    EXPECT_EQ(b.to_vector(), std::vector<Word>(1'000, 8U));
  }
  std::filesystem::path path = folder / "state.safetensors";
  Buffer a = fresh("a", 1'000, manager);
  Buffer b = fresh("b", 1'000, manager);
};

TEST_F(RefusedRestore, BuffersOfOneNameAreNeitherSavedNorRestored) {
  auto twin = made("a", 1'000, 3);
  auto const before = folder.read("state.safetensors");
  EXPECT_THROW(save(manager, path), InvalidArgument);
  EXPECT_EQ(folder.read("state.safetensors"), before);
  EXPECT_THROW(save(manager, folder / "new"), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  EXPECT_THROW(restore(manager, path), InvalidArgument);
  expect_unchanged();
}

TEST_F(RefusedRestore, AnEmptyPathIsNamed) {
  for (auto* const call : {&save, &restore}) {
    try {
      call(manager, "");
      ADD_FAILURE() << "an empty path was taken";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "path");
      EXPECT_EQ(error.value, "");
    }
  }
  expect_unchanged();
}

TEST_F(RefusedRestore, OtherBuffersThanTheFilesAreRefused) {
  {
    auto const more = made("more", 10, 1);
    try {
      restore(manager, path);
      FAIL();
    } catch (NotFound const& error) {
      EXPECT_EQ(error.kind, "tensor");
      EXPECT_EQ(error.name, "more");
      EXPECT_EQ(error.available, (std::vector<std::string>{"a", "b"}));
    }
  }
  MemoryManager other;
  auto only = fresh("b", 1'000, other);
  try {
    restore(other, path);
    FAIL();
  } catch (NotFound const& error) {
    EXPECT_EQ(error.kind, "buffer");
    EXPECT_EQ(error.name, "a");
  }
  EXPECT_EQ(only.state(), BufferState::uninitialized);
  expect_unchanged();
}

TEST_F(RefusedRestore, OtherSizesAndTypesAreRefused) {
  MemoryManager other;
  auto first = fresh("a", 1'000, other);
  {
    auto second = fresh("b", 999, other);
    try {
      restore(other, path);
      FAIL();
    } catch (SizeMismatch const& error) {
      EXPECT_EQ(error.expected, 999 * sizeof(Word));
      EXPECT_EQ(error.actual, 1'000 * sizeof(Word));
      EXPECT_NE(std::string_view(error.what()).find("'b'"), std::string_view::npos);
    }
  }
  {
    UnifiedBuffer<float> second(Shape(1'000), named("b", other));
    EXPECT_THROW(restore(other, path), InvalidArgument);
  }
  {
    UnifiedBuffer<std::array<Word, 1>> second(Shape(1'000), named("b", other));
    EXPECT_THROW(restore(other, path), InvalidArgument) << "bytes of numbers are no structures";
  }
  EXPECT_EQ(first.state(), BufferState::uninitialized);
  Buffer square(Shape({10, 100}), named("b", other));
  restore(other, path);
  EXPECT_EQ(square.to_vector(), words(1'000, 2)) << "the shape may be another";
}

TEST_F(RefusedRestore, BuffersThatMayNotBeWrittenRefuse) {
  MemoryManager other;
  auto first = fresh("a", 1'000, other);
  FileOptions of_file;
  of_file.manager = &other;
  of_file.name = "b";
  auto const second = from_file<Word>(folder.write("b", words(1'000, 5)), of_file);
  EXPECT_THROW(restore(other, path), UnsupportedOperation);
  EXPECT_EQ(first.state(), BufferState::uninitialized);

  MemoryManager third;
  auto again = fresh("a", 1'000, third);
  auto strict = named("b", third);
  strict.strict = true;
  Buffer not_allocated(Shape(1'000), std::move(strict));
  EXPECT_THROW(restore(third, path), BufferNotAllocated);
  EXPECT_EQ(again.state(), BufferState::uninitialized);
}

TEST_F(RefusedRestore, AFlippedBitAnywhereIsFound) {
  auto const whole = folder.read("state.safetensors");
  auto const seed = 2026U;
  SCOPED_TRACE(seed);
  std::mt19937 random{seed};
  std::size_t mismatches = 0;
  auto const attempt = [&](std::size_t byte, unsigned bit) {
    auto damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ static_cast<char>(1U << bit));
    folder.write("damaged", damaged);
    SCOPED_TRACE(::testing::Message() << "bit " << bit << " of byte " << byte);
    try {
      restore(manager, folder / "damaged");
      ADD_FAILURE() << "it is taken";
    } catch (ChecksumMismatch const& error) {
      ++mismatches;
      ASSERT_EQ(error.chunks.size(), 1U);
      EXPECT_TRUE(error.chunks[0].path.ends_with("damaged#a") || error.chunks[0].path.ends_with("damaged#b"));
    } catch (Error const&) {  // NOLINT(bugprone-empty-catch): the header, by whatever shows it first
    }
  };
  auto const header = whole.size() - 2 * 1'000 * sizeof(Word);
  for (std::size_t byte = 0; byte < header; ++byte) attempt(byte, static_cast<unsigned>(random() % 8));
  EXPECT_EQ(mismatches, 0U);
  for (int i = 0; i < 200; ++i) {
    attempt(header + random() % (whole.size() - header), static_cast<unsigned>(random() % 8));
  }
  EXPECT_EQ(mismatches, 200U);
  expect_unchanged();
  restore(manager, path);
  EXPECT_EQ(a.to_vector(), words(1'000, 1));
}

TEST_F(RefusedRestore, AFileCutAnywhereIsRefused) {
  auto const whole = folder.read("state.safetensors");
  std::mt19937 random{2026};
  for (std::size_t i = 0; i < 300; ++i) {
    auto const length = i < 20 ? i : random() % whole.size();
    folder.write("cut", whole.substr(0, length));
    EXPECT_THROW(restore(manager, folder / "cut"), IoError) << length;
  }
  folder.write("longer", whole + 'x');
  EXPECT_THROW(restore(manager, folder / "longer"), IoError);
  EXPECT_THROW(restore(manager, folder / "none"), IoError);
  EXPECT_THROW(restore(manager, folder / "."), IoError);
  expect_unchanged();
}

}  // namespace
}  // namespace unimem::testing
