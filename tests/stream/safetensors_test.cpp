#include "stream/safetensors.hpp"

#include <unimem/core/error.hpp>

#include "random_cases.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

SafetensorsHeader parse(std::string_view json, std::uint64_t data_bytes) {
  return parse_safetensors_header(json, data_bytes, "a.safetensors");
}

std::string refusal(std::string_view json, std::uint64_t data_bytes) {
  try {
    static_cast<void>(parse(json, data_bytes));
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, "a.safetensors");
    EXPECT_EQ(error.code, 0);
    return error.what();
  }
  return "accepted";
}

SafetensorsEntry entry(std::string name, std::string_view dtype, std::vector<std::uint64_t> shape, std::uint64_t begin,
                       std::uint64_t end) {
  return {std::move(name), type_of_safetensors(dtype), std::move(shape), begin, end};
}

TEST(Safetensors, TheFormatsOwnHeaderIsUnderstood) {
  // As the format's own tests have it.
  auto const header = parse(R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}  )", 24);
  EXPECT_THAT(header.tensors, ElementsAre(entry("attn.0", "F32", {1, 2, 3}, 0, 24)));
  EXPECT_TRUE(header.metadata.empty());
  EXPECT_TRUE(parse("{}      ", 0).tensors.empty());
  EXPECT_EQ(parse(R"({"__metadata__":{"framework":"pt"}}     )", 0).metadata.at("framework"), "pt");
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirBytes) {
  auto const header = parse(R"({"b":{"data_offsets":[4,8],"shape":[],"dtype":"I32"},)"
                            R"("empty":{"dtype":"F64","shape":[3,0],"data_offsets":[4,4]},)"
                            R"("__metadata__":{"":"\u00e9"},)"
                            R"("../a\n\u00e9":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})",
                            8);
  EXPECT_THAT(header.tensors, ElementsAre(entry("../a\n\xC3\xA9", "BOOL", {4}, 0, 4),
                                          entry("empty", "F64", {3, 0}, 4, 4), entry("b", "I32", {}, 4, 8)));
  EXPECT_EQ(header.metadata.at(""), "\xC3\xA9");
}

TEST(Safetensors, EveryTypeIsReadBack) {
  for (auto const& type : tensor_types()) {
    if (type.safetensors.empty()) continue;
    std::vector const tensors{SafetensorsEntry{"w", &type, {3, 5}, 0, 15 * type.bytes}};
    auto const text = format_safetensors_header(tensors);
    EXPECT_EQ(parse(std::string_view(text).substr(8), 15 * type.bytes).tensors, tensors) << type.name;
  }
}

TEST(Safetensors, AHeaderIsWrittenAsTheFormatsOwnWriterDoes) {
  EXPECT_EQ(format_safetensors_header({}), std::string("\10\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_EQ(format_safetensors_header({}, {{"framework", "pt"}}),
            std::string("\50\0\0\0\0\0\0\0", 8) + R"({"__metadata__":{"framework":"pt"}}     )");
  std::vector const tensors{entry("attn.0", "F32", {1, 2, 3}, 0, 24)};
  EXPECT_EQ(
      format_safetensors_header(tensors),
      std::string("\100\0\0\0\0\0\0\0", 8) + R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})");
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  testing::expect_in_random_cases(300, [](std::vector<std::string> const& some, std::uint32_t seed) {
    std::mt19937 random{seed};
    std::map<std::string, std::string> metadata;
    std::map<std::string, SafetensorsEntry> named;
    std::vector<SafetensorsEntry> tensors;
    std::uint64_t at = 0;
    for (auto name : some) {
      std::erase_if(name, [](char c) { return c == '\0' || static_cast<unsigned char>(c) >= 0x80; });
      if (!named.try_emplace(name).second) continue;
      auto const types = tensor_types();
      auto const* type = &types[random() % types.size()];
      if (type->safetensors.empty()) type = &types[0];
      std::vector<std::uint64_t> shape(random() % 4);
      for (auto& extent : shape) extent = random() % 5;
      auto const bytes = *tensor_bytes(*type, shape);
      tensors.push_back({name, type, shape, at, at + bytes});
      at += bytes;
      metadata.emplace(name, name + "\"\\");
    }
    auto const text = format_safetensors_header(tensors, metadata);
    RC_ASSERT(text.size() % 8 == 0U);
    auto const bytes = safetensors_header_bytes(std::as_bytes(std::span{text}).first(8), text.size() + at, "a");
    RC_ASSERT(bytes == text.size() - 8);
    auto const header = parse(std::string_view(text).substr(8), at);
    // Tensors without bytes may stand in another order, where they begin where others do.
    RC_ASSERT(header.metadata == metadata);
    RC_ASSERT(header.tensors.size() == tensors.size());
    for (auto const& one : header.tensors) RC_ASSERT(std::ranges::find(tensors, one) != tensors.end());
  });
}

TEST(Safetensors, WhatCannotBeReadIsNotWritten) {
  auto const refused = [](std::vector<SafetensorsEntry> const& tensors) {
    EXPECT_THROW(static_cast<void>(format_safetensors_header(tensors)), InvalidArgument);
  };
  refused({entry("__metadata__", "U8", {1}, 0, 1)});
  refused({entry(std::string("a\0b", 3), "U8", {1}, 0, 1)});
  refused({entry(std::string(70'000, 'a'), "U8", {1}, 0, 1)});
  refused({entry("\xFF", "U8", {1}, 0, 1)});
  refused({entry("\xED\xA0\x80", "U8", {1}, 0, 1)});
  refused({entry("a", "U8", {1}, 0, 1), entry("a", "U8", {1}, 1, 2)});
  refused({entry("a", "U8", {1}, 0, 2)});
  refused({entry("a", "U8", {1}, 1, 2)});
  refused({entry("a", "U8", {2}, 0, 2), entry("b", "U8", {1}, 1, 2)});
  std::vector const complex{SafetensorsEntry{"a", type_of_npy("c16"), {1}, 0, 16}};
  EXPECT_THROW(static_cast<void>(format_safetensors_header(complex)), UnsupportedOperation);
  EXPECT_THROW(static_cast<void>(format_safetensors_header({}, {{"a", "\x80"}})), InvalidArgument);
}

TEST(Safetensors, ALengthThatCannotBeIsRefusedBeforeThereIsMemoryForIt) {
  auto const length = [](std::uint64_t bytes, std::uint64_t file_bytes) {
    std::array<std::byte, 8> prefix{};
    std::memcpy(prefix.data(), &bytes, 8);
    try {
      return std::to_string(safetensors_header_bytes(prefix, file_bytes, "a.safetensors"));
    } catch (IoError const& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(length(92, 100), "92");
  EXPECT_EQ(length(0, 8), "0");
  EXPECT_EQ(length(100'000'000, 1ULL << 40), "100000000");
  EXPECT_THAT(length(93, 100), HasSubstr("a header of 93 bytes, and the file has 92"));
  EXPECT_THAT(length(100'000'001, 1ULL << 40), HasSubstr("a header of 100000001 bytes, of 100000000 at most"));
  EXPECT_THAT(length(std::numeric_limits<std::uint64_t>::max(), 1ULL << 40), HasSubstr("18446744073709551615 bytes"));
  EXPECT_THAT(length(0, 7), HasSubstr("7 bytes are no length"));
}

TEST(Safetensors, EachThingThatIsWrongIsNamed) {
  auto const tensor = [](std::string const& dtype, std::string const& shape, std::string const& offsets) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  auto const two = [](std::string const& first, std::string const& second) {
    return R"({"v":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"w":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  std::string ones;
  for (int i = 0; i < 64; ++i) ones += ",1";
  std::string const good = tensor("\"U8\"", "[8]", "[0,8]");
  ASSERT_EQ(refusal(good, 8), "accepted");
  struct {
    std::string json;
    std::string message;
  } const refused[] = {
      {"", "does not begin with '{'"},
      {" {}", "does not begin with '{'"},
      {"[]", "does not begin with '{'"},
      {"\xEF\xBB\xBF{}", "does not begin with '{'"},
      {"{", "no JSON at its byte"},
      {"{} x", "no JSON at its byte"},
      {"{}{}", "no JSON at its byte"},
      {std::string("{}\0", 3), "a NUL at its byte 2"},
      {good + ",", "no JSON at its byte"},
      {"{'w':1}", "no JSON at its byte"},
      {"{\"\xFF\":{}}", "no JSON at its byte"},
      {R"({"\ud800":{}})", "no JSON at its byte"},
      {"{/**/}", "no JSON at its byte"},
      {R"({"w":1})", "the number 1 in place of the object of 'w'"},
      {R"({"w":null})", "null in place of the object of 'w'"},
      {R"({"w":[]})", "an array in place of the object of 'w'"},
      {R"({"w":{}})", "tensor 'w' needs dtype, shape and two data_offsets"},
      {R"({"w":{"dtype":"U8","shape":[]}})", "tensor 'w' needs"},
      {R"({"w":{"dtype":"U8","data_offsets":[0,8]}})", "tensor 'w' needs"},
      {R"({"w":{"shape":[8],"data_offsets":[0,8]}})", "tensor 'w' needs"},
      {R"({"w":{"strides":[1]}})", "unknown key 'strides' of tensor 'w'"},
      {R"({"w":{"dtype":"U8","dtype":"U8"}})", "dtype of tensor 'w' is there twice"},
      {R"({"w":{"shape":[],"shape":[]}})", "shape of tensor 'w' is there twice"},
      {R"({"w":{"data_offsets":[0,8],"data_offsets":[0,8]}})", "data_offsets of tensor 'w' is there twice"},
      {R"({"\u0000":{}})", "the name '?' has a NUL"},
      {"{\"" + std::string(65'536, 'n') + "\":{}}", "a name of 65536 bytes, of 65535 at most"},
      {good.substr(0, good.size() - 1) + ",\"\\u0077\"" + good.substr(4), "tensor 'w' is there twice"},
      {tensor("\"F4\"", "[16]", "[0,8]"), "unsupported dtype 'F4' of tensor 'w'"},
      {tensor("\"F6_E2M3\"", "[8]", "[0,6]"), "unsupported dtype 'F6_E2M3' of tensor 'w'"},
      {tensor("\"f32\"", "[2]", "[0,8]"), "unsupported dtype 'f32'"},
      {tensor("\"\"", "[2]", "[0,8]"), "unsupported dtype ''"},
      {tensor("8", "[8]", "[0,8]"), "the number 8 in dtype of tensor 'w'"},
      {tensor("[\"U8\"]", "[8]", "[0,8]"), "an array in dtype of tensor 'w'"},
      {tensor("\"U8\"", "\"8\"", "[0,8]"), "a string in shape of tensor 'w'"},
      {tensor("\"U8\"", "8", "[0,8]"), "the number 8 in shape of tensor 'w'"},
      {tensor("\"U8\"", "[[8]]", "[0,8]"), "an array in shape of tensor 'w'"},
      {tensor("\"U8\"", "[{}]", "[0,8]"), "an object in shape of tensor 'w'"},
      {tensor("\"U8\"", "[-8]", "[0,8]"), "the negative number -8 in shape of tensor 'w'"},
      {tensor("\"U8\"", "[8.0]", "[0,8]"), "the number '8.0', which is no count below 2^63, in shape"},
      {tensor("\"U8\"", "[1e1]", "[0,8]"), "the number '1e1', which is no count"},
      {tensor("\"U8\"", "[9223372036854775808]", "[0,8]"), "the number 9223372036854775808, which is no count"},
      {tensor("\"U8\"", "[18446744073709551616]", "[0,8]"), "the number '18446744073709551616', which is no count"},
      {tensor("\"U8\"", "[true]", "[0,8]"), "true in shape of tensor 'w'"},
      {tensor("\"U8\"", "[4294967296,4294967296]", "[0,8]"), "the shape of tensor 'w' does not fit 64 bits"},
      {tensor("\"F64\"", "[4611686018427387904]", "[0,8]"), "the shape of tensor 'w' does not fit 64 bits"},
      {tensor("\"U8\"", "[1" + ones + "]", "[0,1]"), "more than 64 extents"},
      {tensor("\"U8\"", "[8]", "[0]"), "1 numbers in place of two in data_offsets"},
      {tensor("\"U8\"", "[8]", "[]"), "0 numbers in place of two"},
      {tensor("\"U8\"", "[8]", "[0,8,8]"), "a third number in data_offsets of tensor 'w'"},
      {tensor("\"U8\"", "[8]", "[8,0]"), "tensor 'w' ends before it begins"},
      {tensor("\"U8\"", "[8]", "[-1,7]"), "the negative number -1"},
      {tensor("\"U8\"", "[7]", "[0,8]"), "tensor 'w' has 8 bytes, and its dtype and shape take 7"},
      {tensor("\"U8\"", "[9]", "[0,9]"), "its tensors take 9 bytes, and 8 follow it"},
      {tensor("\"U8\"", "[7]", "[0,7]"), "its tensors take 7 bytes, and 8 follow it"},
      {tensor("\"U8\"", "[7]", "[1,8]"), "no tensor has bytes [0, 1) of the data, in front of 'w'"},
      {two("[0,4]", "[5,9]"), "no tensor has bytes [4, 5) of the data, in front of 'w'"},
      {two("[0,4]", "[3,7]"), "tensor 'w' begins at byte 3, within another"},
      {two("[0,4]", "[0,4]"), "begins at byte 0, within another"},
      {R"({"__metadata__":{"a":1}})", "the number 1 in place of the text of 'a' in __metadata__"},
      {R"({"__metadata__":null})", "null in place of the object of '__metadata__'"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "'a' is in __metadata__ twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "__metadata__ is there twice"},
      {R"({"__metadata__":{"a":{}}})", "an object in place of the text of 'a'"},
  };
  for (auto const& [json, message] : refused) {
    EXPECT_THAT(refusal(json, 8), HasSubstr(message)) << json.substr(0, 200);
    EXPECT_THAT(refusal(json, 8), StartsWith("a.safetensors: ")) << json.substr(0, 200);
    EXPECT_LT(refusal(json, 8).size(), 400U);
  }
}

TEST(Safetensors, BombsOfJsonAreRefusedWhereTheyBegin) {
  EXPECT_THAT(refusal(R"({"w":)" + std::string(1'000'000, '['), 0), HasSubstr("an array in place of the object"));
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += R"({"a":)";
  EXPECT_THAT(refusal(nested, 0), HasSubstr("unknown key 'a' of tensor 'a'"));
  std::string many = "{";
  for (std::size_t i = 0; i <= most_safetensors_tensors; ++i) {
    many += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  EXPECT_THAT(refusal(many + "}", 0), HasSubstr("more than 262144 tensors"));
}

TEST(Safetensors, CutOffAnywhereItIsRefused) {
  std::vector const tensors{entry("a", "F32", {2}, 0, 8), entry("b", "U8", {}, 8, 9)};
  auto const text = format_safetensors_header(tensors, {{"k", "v"}}).substr(8);
  auto const end = text.find_last_of('}') + 1;
  for (std::size_t bytes = 0; bytes < end; ++bytes) {
    EXPECT_THAT(refusal(text.substr(0, bytes), 9), StartsWith("a.safetensors: malformed")) << bytes;
  }
  EXPECT_EQ(refusal(text.substr(0, end), 9), "accepted");
}

/// Headers damaged at random: whatever is accepted must mean the same when written out again, and nothing may do worse
/// than throw.
class SafetensorsDamage : public ::testing::TestWithParam<unsigned> {};

TEST_P(SafetensorsDamage, IsRefusedOrUnderstood) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  std::vector const tensors{entry("a", "U8", {12}, 0, 12), entry("b", "I16", {3, 2}, 12, 24)};
  auto const good = format_safetensors_header(tensors, {{"key", "value"}}).substr(8);
  int understood = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto json = good;
    for (auto damages = 1 + random() % 3; damages > 0; --damages) {
      auto const at = random() % json.size();
      switch (random() % 4) {
        case 0:
          json[at] = static_cast<char>(random());
          break;
        case 1:
          json.erase(at, 1 + random() % 4);
          break;
        case 2:
          json.insert(at, 1, "\"{}[]:, 0123\0"[random() % 13]);
          break;
        default:
          json[at] = json[random() % json.size()];
      }
    }
    try {
      auto const header = parse(json, 24);
      ASSERT_EQ(parse(format_safetensors_header(header.tensors, header.metadata).substr(8), 24), header);
      ++understood;
    } catch (IoError const&) {
    }
  }
  EXPECT_GT(understood, 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SafetensorsDamage, ::testing::Values(1U, 2U, 2026U));

}  // namespace
}  // namespace unimem::detail
