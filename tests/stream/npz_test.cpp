#include "stream/npz.hpp"

#include <unimem/core/error.hpp>

#include "stream/byte_source.hpp"
#include "stream/tensor_files.hpp"
#include "stream/utf8.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace unimem::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::zip_file;
using testing::ZipMember;
using testing::ZipShape;

/// Refuses to be read beyond its end, and counts what is read.
ByteSource source_of(std::string const& file, std::size_t* read = nullptr) {
  return {"a.npz", file.size(), [&file, read](std::uint64_t offset, std::span<std::byte> to) {
            ASSERT_LE(offset, file.size());
            ASSERT_LE(to.size(), file.size() - offset);
            if (!to.empty()) std::memcpy(to.data(), file.data() + offset, to.size());
            if (read != nullptr) *read += to.size();
          }};
}

std::vector<NpzMember> members_of(std::string const& file) {
  return read_npz_members(source_of(file));
}

std::string refusal(std::string const& file) {
  try {
    static_cast<void>(members_of(file));
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, "a.npz");
    EXPECT_EQ(error.code, 0);
    return error.what();
  }
  return "accepted";
}

std::string contents_of(std::string const& file, NpzMember const& member) {
  return file.substr(member.offset, member.bytes);
}

TEST(Npz, MembersAreFoundByTheirNames) {
  for (bool const zip64 : {false, true}) {
    for (auto const& comment :
         {std::string(), std::string("a comment PK\5\6 that looks like its end"), std::string(60'000, 'c')}) {
      auto const file = zip_file({{"b.npy", "the second", 0, 0, zip64},
                                  {"read.me", "no array", 0, 0, zip64},
                                  {"../\xC3\xA9.npy", "", 0, 0x800, zip64},
                                  {"a/b.npy", std::string(1'000, 'x'), 0, 0, zip64}},
                                 {zip64, comment, 0, 0, "aligned"});
      auto const members = members_of(file);
      ASSERT_EQ(members.size(), 3U);
      EXPECT_EQ(members[0].name, "b");
      EXPECT_EQ(contents_of(file, members[0]), "the second");
      EXPECT_EQ(members[1].name, "../\xC3\xA9");
      EXPECT_EQ(members[1].bytes, 0U);
      EXPECT_EQ(members[2].name, "a/b");
      EXPECT_EQ(contents_of(file, members[2]), std::string(1'000, 'x'));
    }
  }
  EXPECT_TRUE(members_of(zip_file({})).empty());
}

TEST(Npz, NothingOfTheMembersIsRead) {
  auto const file = zip_file({{"a.npy", std::string(1'000'000, 'x')}, {"b.npy", std::string(1'000'000, 'x')}});
  std::size_t read = 0;
  EXPECT_EQ(read_npz_members(source_of(file, &read)).size(), 2U);
  EXPECT_LT(read, 500U);
}

TEST(Npz, SizesThatCameBehindAreInTheDirectory) {
  auto file = zip_file({{"a.npy", "contents", 0, 8}});
  std::fill_n(file.begin() + 18, 8, '\0');  // its own header does not know them
  EXPECT_THAT(members_of(file), ElementsAre(NpzMember{"a", 35, 8}));
}

TEST(Npz, EachThingThatIsWrongIsNamed) {
  auto const with = [](ZipMember member) { return zip_file({{"first.npy", "1234"}, std::move(member)}); };
  auto const patched = [](std::string file, std::size_t at, std::string_view bytes) {
    return file.replace(at, bytes.size(), bytes);
  };
  auto const one = zip_file({{"a.npy", "contents"}});
  auto const directory = 30 + 5 + 8;
  auto const end = one.size() - 22;
  auto const large = zip_file({{"a.npy", "contents", 0, 0, true}}, {.zip64 = true});
  auto const large_end = large.size() - 22 - 20 - 56;
  struct {
    std::string file;
    std::string message;
  } const refused[] = {
      {"", "does not end as a zip archive does"},
      {std::string(100, 'x'), "does not end as a zip archive does"},
      {std::string(100'000, 'x'), "does not end as a zip archive does"},
      {one + "x", "does not end as a zip archive does"},
      {"x" + one, "does not end where its end record begins"},
      {with({"a.npy", "contents", 8}),
       "'a.npy' is compressed: write it with numpy.savez instead of numpy.savez_compressed"},
      {with({"a.npy", "contents", 93}), "'a.npy' is compressed by method 93"},
      {with({"a.npy", "contents", 0, 1}), "'a.npy' is encrypted"},
      {with({"a.npy", "contents", 0, 0x2001}), "'a.npy' is encrypted"},
      {with({"first.npy", "contents"}), "member 'first.npy' is there twice"},
      {with({std::string("a\0b.npy", 7), "contents"}), "a member's name has a NUL"},
      {with({"\xE9.npy", "contents"}), "the name '?.npy' is no UTF-8"},
      {with({"\xE9.npy", "contents", 0, 0x800}), "the name '?.npy' is no UTF-8"},
      {with({.name = "a.npy", .contents = "contents", .local_name = "b.npy"}),
       "own header and the directory say different"},
      {with({.name = "a.npy", .contents = "contents", .more_bytes = 1}),
       "member 'a.npy': it ends beyond where the directory begins"},
      {zip_file({{.name = "a.npy", .contents = "contents", .more_bytes = 1}, {"b.npy", ""}}),
       "members 'a.npy' and 'b.npy' overlap"},
      {zip_file({{"a.npy", "contents"}}, {.more_entries = 1}), "2 members in a directory of 51 bytes"},
      {zip_file({{"a.npy", "contents"}}, {.offset_by = 1}), "directory of 51 bytes from 44 on does not end where"},
      {zip_file({{"a.npy", "c"}}, {.zip64 = true, .more_entries = 1ULL << 40}), "1099511627777 members"},
      {zip_file({{"a.npy", "c"}}, {.zip64 = true, .more_entries = ~0ULL}),
       "its directory has more than the entries that it says"},
      {zip_file({{"a.npy", "c"}}, {.zip64 = true, .offset_by = 1ULL << 63}), "does not end where"},
      {patched(one, end + 4, "\1"), "one of several volumes"},
      {patched(one, end + 8, "\2"), "one of several volumes"},
      {patched(one, directory, "x"), "its directory has fewer entries than it says"},
      {patched(one, directory + 34, "\1"), "one of several volumes"},
      {patched(one, directory + 28, "\377\377"), "an entry ends beyond its directory"},
      {patched(one, directory + 42, "\377\377\377\177"), "it begins beyond where the directory begins"},
      {patched(one, directory + 42, "\1"), "it does not begin where the directory says"},
      {patched(one, directory + 20, "\7"), "it is stored, and has two sizes"},
      {patched(one, directory + 24, "\377\377\377\377"), "a ZIP64 field is missing"},
      {patched(one, 18, "\7"), "own header and the directory say different things"},
      {patched(one, 8, "\10"), "own header and the directory say different things"},
      {patched(one, 28, "\377"), "its header ends beyond where the directory begins"},
      {patched(large, large_end, "x"), "its ZIP64 end record is not where it is said to be"},
      {patched(large, large_end + 56 + 8, "\1"), "its ZIP64 end record is not where it is said to be"},
      {patched(large, large_end + 56 + 4, "\1"), "one of several volumes"},
      {patched(large, large_end + 32, "\2"), "one of several volumes"},
      {patched(large, large.size() - 22 + 8, std::string_view("\2\0\2\0", 4)),
       "its two end records say different things"},
  };
  ASSERT_EQ(refusal(one), "accepted");
  ASSERT_EQ(refusal(large), "accepted");
  for (auto const& [file, message] : refused) {
    EXPECT_THAT(refusal(file), HasSubstr(message));
    EXPECT_THAT(refusal(file), StartsWith("a.npz: "));
    EXPECT_LT(refusal(file).size(), 400U);
  }
}

TEST(Npz, CutOffAnywhereItIsRefused) {
  for (bool const zip64 : {false, true}) {
    auto const file = zip_file({{"a.npy", "contents", 0, 0, zip64}, {"b.npy", "more", 0, 0, zip64}}, {.zip64 = zip64});
    for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
      EXPECT_THAT(refusal(file.substr(0, bytes)), StartsWith("a.npz: malformed")) << bytes;
    }
    EXPECT_EQ(refusal(file), "accepted");
  }
}

/// Archives damaged at random: what is accepted has members that lie in the file, each by itself.
class NpzDamage : public ::testing::TestWithParam<unsigned> {};

TEST_P(NpzDamage, IsRefusedOrHarmless) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  int understood = 0;
  for (int round = 0; round < 20'000; ++round) {
    bool const zip64 = round % 2 == 0;
    auto file = zip_file({{"a.npy", "contents", 0, 0, zip64}, {"b.npy", "more", 0, 0, zip64}}, {.zip64 = zip64});
    for (auto damages = 1 + random() % 3; damages > 0; --damages) {
      auto const at = random() % file.size();
      switch (random() % 3) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
          break;
        default:
          file[at] = "\0\377\1"[random() % 3];
      }
    }
    try {
      std::uint64_t before = 0;
      for (auto const& member : members_of(file)) {
        ASSERT_GE(member.offset, before);
        before = member.offset + member.bytes;
        ASSERT_LE(before, file.size());
      }
      ++understood;
    } catch (IoError const&) {
    }
  }
  EXPECT_GT(understood, 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, NpzDamage, ::testing::Values(1U, 2U, 2026U));

TEST(Utf8, IsToldFromWhatIsNone) {
  for (auto const* const good : {"", "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                 "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "a\xC3\xA9z"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (auto const* const bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2",
                                "\xC2"
                                "a",
                                "\xE0\x9F\xBF", "\xE1\x80", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF0\x90\x80",
                                "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
                                "\xE2\x82"
                                "a"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace unimem::detail
