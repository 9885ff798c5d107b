#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "core/sanitizers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::HasSubstr;

__extension__ using Wide = unsigned __int128;

constexpr auto most = std::numeric_limits<std::uint64_t>::max();
constexpr auto most_size = std::numeric_limits<std::size_t>::max();

// ---- parse_size ------------------------------------------------------------------------------------------------

TEST(ParseSize, ReadsEveryUnit) {
  std::vector<std::pair<std::string, std::uint64_t>> const table{
      {"0", 0},
      {"4096", 4096},
      {"0007", 7},
      {"12B", 12},
      {"1kB", 1000},
      {"1KB", 1000},
      {"64KiB", 65'536},
      {"3MB", 3'000'000},
      {"3MiB", 3 << 20},
      {"12GB", 12'000'000'000},
      {"1GiB", 1 << 30},
      {"1.5GiB", 1'610'612'736},
      {"2TB", 2'000'000'000'000},
      {"2TiB", 2'199'023'255'552},
      {"1PB", 1'000'000'000'000'000},
      {"1PiB", 1'125'899'906'842'624},
      {"0GiB", 0},
      {"0.0GiB", 0},
  };
  for (auto const& [text, bytes] : table) EXPECT_EQ(parse_size(text), bytes) << text;
}

TEST(ParseSize, CutsFractionsToWholeBytesExactly) {
  EXPECT_EQ(parse_size("0.1KiB"), 102U);
  EXPECT_EQ(parse_size("0.5KiB"), 512U);
  EXPECT_EQ(parse_size("0.25MB"), 250'000U);
  EXPECT_EQ(parse_size("1.000"), 1U) << "a fraction of nothing is none";
  EXPECT_EQ(parse_size("7.0B"), 7U);
  EXPECT_EQ(parse_size("0.0009kB"), 0U);
  EXPECT_EQ(parse_size("0.1PB"), 100'000'000'000'000U) << "no double is that";
  EXPECT_EQ(parse_size("0.000000000000000888178419700125232338905334472656250PiB"), 1U) << "2^-50, to the last digit";
  EXPECT_EQ(parse_size("0.000000000000000888178419700125232338905334472656249PiB"), 0U);
  EXPECT_EQ(parse_size("1." + std::string(10'000, '9') + "KiB"), 2047U);
}

TEST(ParseSize, ReachesTheLastByteOf64Bits) {
  EXPECT_EQ(parse_size("18446744073709551615"), most);
  EXPECT_EQ(parse_size("18446744073709551615B"), most);
  EXPECT_EQ(parse_size("16383PiB"), std::uint64_t{16'383} << 50);
  EXPECT_EQ(parse_size("16383.9999999999999999999PiB"), most);
  EXPECT_EQ(parse_size("18446.744073709551615PB"), most);
}

TEST(ParseSize, RefusesMoreThan64BitsNamingTheBound) {
  for (auto const* const text : {"18446744073709551616", "99999999999999999999999", "16384PiB",
                                 "18446.744073709551616PB", "18014398509481984KiB", "184467440737095516150B"}) {
    try {
      (void)parse_size(text, "limit");
      ADD_FAILURE() << text << " was accepted";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "limit");
      EXPECT_EQ(error.value, text);
      EXPECT_THAT(error.requirement, HasSubstr("16 EiB"));
    }
  }
}

TEST(ParseSize, RefusesEverythingThatIsNoSize) {
  std::vector<std::string> const table{
      "",
      " ",
      "B",
      "KiB",
      ".",
      ".5",
      ".5GiB",
      "1.",
      "1.GiB",
      "1..5GiB",
      "1.5.5GiB",
      "-1",
      "+1",
      "-0",
      " 1",
      "1 ",
      "1 KiB",
      "1\t",
      "1\n",
      "1e6",
      "1E6",
      "0x10",
      "1,5GiB",
      "1'000",
      "1_000",
      "1K",
      "1k",
      "1M",
      "1G",
      "1kib",
      "1KIB",
      "1Kib",
      "1kiB",
      "1mb",
      "1Mb",
      "1gb",
      "1EB",
      "1EiB",
      "1b",
      "1BB",
      "1KiBB",
      "1KiB1",
      "B1",
      "inf",
      "nan",
      "\xC2\xBD",
      "1\xC2\xA0KiB",
      "\xD9\xA1",
      std::string("1\0", 2),
      std::string("\0001", 2),
      "12GB ",
      "--1",
      "1-",
  };
  for (auto const& text : table) {
    try {
      ADD_FAILURE() << "'" << text << "' was read as " << parse_size(text, "chunk");
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "chunk");
      EXPECT_EQ(error.value, text);
    }
  }
}

TEST(ParseSize, RefusesAFractionOfAByte) {
  for (auto const* const text : {"0.5", "1.5B", "1.0000000000000000000000001", "4096.1"}) {
    try {
      (void)parse_size(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "size");
      EXPECT_EQ(error.requirement, "a whole number of bytes");
    }
  }
}

/// The grammar and the value in another way: cut at what is no digit, computed at once in 128 bits. Fractions only up
/// to 18 digits, which is what those hold.
std::optional<std::uint64_t> oracle(std::string const& text) {
  static std::map<std::string, std::uint64_t> const units{{"", 1},
                                                          {"B", 1},
                                                          {"kB", 1'000},
                                                          {"KB", 1'000},
                                                          {"MB", 1'000'000},
                                                          {"GB", 1'000'000'000},
                                                          {"TB", 1'000'000'000'000},
                                                          {"PB", 1'000'000'000'000'000},
                                                          {"KiB", 1ULL << 10},
                                                          {"MiB", 1ULL << 20},
                                                          {"GiB", 1ULL << 30},
                                                          {"TiB", 1ULL << 40},
                                                          {"PiB", 1ULL << 50}};
  constexpr auto digits = "0123456789";
  auto const whole_end = std::min(text.find_first_not_of(digits), text.size());
  bool const has_fraction = text.substr(whole_end).starts_with('.');
  auto const fraction_begin = whole_end + (has_fraction ? 1 : 0);
  auto const fraction_end =
      has_fraction ? std::min(text.find_first_not_of(digits, fraction_begin), text.size()) : whole_end;
  if (whole_end == 0 || (has_fraction && fraction_end == fraction_begin)) return std::nullopt;
  auto const unit = units.find(text.substr(fraction_end));
  if (unit == units.end()) return std::nullopt;

  Wide whole = 0, fraction = 0, scale = 1;
  for (char const c : text.substr(0, whole_end)) {
    whole = whole * 10 + static_cast<unsigned>(c - '0');
    if (whole > most) return std::nullopt;
  }
  for (char const c : text.substr(fraction_begin, fraction_end - fraction_begin)) {
    fraction = fraction * 10 + static_cast<unsigned>(c - '0');
    scale *= 10;
  }
  if (unit->second == 1 && fraction != 0) return std::nullopt;
  auto const bytes = whole * unit->second + fraction * unit->second / scale;
  if (bytes > most) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::optional<std::uint64_t> parsed(std::string const& text) {
  try {
    return parse_size(text);
  } catch (InvalidArgument const&) {
    return std::nullopt;
  }
}

class ParseSizeRandom : public ::testing::TestWithParam<unsigned> {
 protected:
  static constexpr int rounds = detail::is_sanitized ? 6'000 : 60'000;
};

TEST_P(ParseSizeRandom, AgreesWithTheGrammarOnArbitraryText) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  // Mostly pieces of sizes, so that many are nearly right, and any byte at all.
  std::array<std::string, 24> const pieces{"0",    "1",   "9",   "18446744073709551615",
                                           "4096", "5",   ".",   ".",
                                           "KiB",  "MiB", "GiB", "PiB",
                                           "kB",   "GB",  "PB",  "B",
                                           "K",    "i",   "-",   "+",
                                           " ",    "e",   "E",   "x"};
  int accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string text;
    for (auto parts = random() % 6; parts != 0; --parts) {
      if (random() % 16 == 0) {
        text += static_cast<char>(random() % 256);
      } else {
        text += pieces[random() % pieces.size()];
      }
    }
    if (auto const dot = text.find('.'); dot != std::string::npos && text.size() - dot > 18) continue;
    auto const value = parsed(text);
    accepted += value ? 1 : 0;
    ASSERT_EQ(value, oracle(text)) << "'" << text << "'";
  }
  EXPECT_GT(accepted, rounds / 30) << "the text is not random in an interesting way";
}

TEST_P(ParseSizeRandom, AgreesWithLongDivision) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937_64 random{GetParam()};
  std::array<std::string, 13> const units{"",   "B",   "kB",  "KB",  "MB",  "GB", "TB",
                                          "PB", "KiB", "MiB", "GiB", "TiB", "PiB"};
  for (int round = 0; round < rounds; ++round) {
    auto text = std::to_string(random() >> (random() % 64));
    if (random() % 2 == 0) {
      text += '.';
      for (auto digits = 1 + random() % 18; digits != 0; --digits) text += static_cast<char>('0' + random() % 10);
    }
    text += units[random() % units.size()];
    ASSERT_EQ(parsed(text), oracle(text)) << text;
  }
}

TEST_P(ParseSizeRandom, ReadsBackTheDecimalSpellingOfAnyNumber) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937_64 random{GetParam()};
  for (int round = 0; round < 20'000; ++round) {
    auto const bytes = random() >> (random() % 64);
    ASSERT_EQ(parse_size(std::to_string(bytes)), bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ParseSizeRandom, ::testing::Values(1U, 2U, 2026U));

// ---- format_size -----------------------------------------------------------------------------------------------

TEST(FormatSize, IsWholeOrHasTwoDecimals) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1), "1 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1 KiB");
  EXPECT_EQ(format_size(4096), "4 KiB");
  EXPECT_EQ(format_size(1536), "1.50 KiB");
  EXPECT_EQ(format_size(1'610'612'736), "1.50 GiB");
  EXPECT_EQ(format_size(std::uint64_t{16'383} << 50), "16.00 EiB");
  EXPECT_EQ(format_size(std::uint64_t{1} << 60), "1 EiB");
  EXPECT_EQ(format_size(most), "16.00 EiB");
}

TEST(FormatSize, NeverSays1024OfAUnit) {
  EXPECT_EQ(format_size((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_size((1ULL << 50) - 1), "1.00 PiB");
  EXPECT_EQ(format_size(1'048'570), "1023.99 KiB");
}

TEST(FormatSize, WholeSizesReadBackAsTheyWere) {
  for (std::uint64_t count : {1ULL, 3ULL, 999ULL, 1023ULL}) {
    for (unsigned bits = 0; bits <= 50; bits += 10) {
      auto text = format_size(count << bits);
      text.erase(text.find(' '), 1);
      EXPECT_EQ(parse_size(text), count << bits) << text;
    }
  }
}

// ---- Checked arithmetic ----------------------------------------------------------------------------------------

TEST(CheckedArithmetic, ReachesTheBoundAndRefusesToWrap) {
  EXPECT_EQ(checked_multiply(0, most_size, "count"), 0U);
  EXPECT_EQ(checked_multiply(most_size, 1, "count"), most_size);
  EXPECT_EQ(checked_multiply(std::size_t{1} << 32, (std::size_t{1} << 32) - 1, "count"), most_size - 0xFFFFFFFFU);
  EXPECT_THROW((void)checked_multiply(std::size_t{1} << 32, std::size_t{1} << 32, "count"), InvalidArgument);
  EXPECT_THROW((void)checked_multiply(most_size, 2, "count"), InvalidArgument);
  EXPECT_EQ(checked_add(most_size - 1, 1, "end"), most_size);
  EXPECT_THROW((void)checked_add(most_size, 1, "end"), InvalidArgument);
  EXPECT_THROW((void)checked_add(most_size, most_size, "end"), InvalidArgument);
  try {
    (void)checked_multiply(most_size, 8, "count");
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "count");
    EXPECT_EQ(error.value, "18446744073709551615 x 8");
  }
}

TEST(CheckedArithmetic, AgreesWith128Bits) {
  std::mt19937_64 random{42};
  for (int round = 0; round < 50'000; ++round) {
    auto const a = random() >> (random() % 64), b = random() >> (random() % 64);
    auto const product = static_cast<Wide>(a) * b;
    auto const sum = static_cast<Wide>(a) + b;
    if (product <= most_size) {
      ASSERT_EQ(checked_multiply(a, b, "x"), static_cast<std::size_t>(product));
    } else {
      ASSERT_THROW((void)checked_multiply(a, b, "x"), InvalidArgument);
    }
    if (sum <= most_size) {
      ASSERT_EQ(checked_add(a, b, "x"), static_cast<std::size_t>(sum));
    } else {
      ASSERT_THROW((void)checked_add(a, b, "x"), InvalidArgument);
    }
  }
}

/// What check_window throws names; empty if it throws nothing.
std::string offender(std::size_t offset, std::size_t count, std::size_t size) {
  try {
    check_window(offset, count, size);
    return {};
  } catch (InvalidArgument const& error) {
    return error.argument;
  }
}

TEST(CheckWindow, AcceptsExactlyWhatLiesInside) {
  EXPECT_EQ(offender(0, 0, 0), "");
  EXPECT_EQ(offender(10, 0, 10), "") << "an empty window at the end";
  EXPECT_EQ(offender(3, 7, 10), "");
  EXPECT_EQ(offender(3, 8, 10), "count");
  EXPECT_EQ(offender(11, 0, 10), "offset");
  EXPECT_EQ(offender(1, most_size, 10), "count") << "the sum would wrap to 0";
  EXPECT_EQ(offender(most_size, 1, 10), "offset");
  EXPECT_EQ(offender(most_size, most_size, most_size), "count");
  EXPECT_EQ(offender(0, most_size, most_size), "");
}

TEST(RoundUp, GoesToTheNextMultipleOrRefuses) {
  EXPECT_EQ(round_up(0, 256), 0U);
  EXPECT_EQ(round_up(1, 256), 256U);
  EXPECT_EQ(round_up(256, 256), 256U);
  EXPECT_EQ(round_up(257, 256), 512U);
  EXPECT_EQ(round_up(77, 1), 77U);
  EXPECT_EQ(round_up(most_size, 1), most_size);
  EXPECT_EQ(round_up(most_size - 255, 256), most_size - 255);
  EXPECT_THROW((void)round_up(most_size - 254, 256), InvalidArgument);
  EXPECT_THROW((void)round_up(most_size, 2), InvalidArgument);
}

TEST(CheckAlignment, AcceptsPowersOfTwoUpToTheMost) {
  for (std::size_t alignment = 1; alignment <= 4096; ++alignment) {
    bool accepted = true;
    try {
      check_alignment(alignment, 1024);
    } catch (InvalidArgument const& error) {
      accepted = false;
      ASSERT_EQ(error.value, std::to_string(alignment));
    }
    ASSERT_EQ(accepted, (alignment & (alignment - 1)) == 0 && alignment <= 1024) << alignment;
  }
  EXPECT_THROW(check_alignment(0, 1024), InvalidArgument);
}

}  // namespace
}  // namespace unimem
