#include "stream/npy.hpp"

#include <unimem/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace unimem::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string with_prefix(std::string_view dictionary, char major = 1) {
  std::string header = "\x93NUMPY";
  header += major;
  header += '\0';
  for (unsigned i = 0; i < (major == 1 ? 2U : 4U); ++i)
    header += static_cast<char>(dictionary.size() >> (8 * i) & 0xFFU);
  return header.append(dictionary);
}

NpyHeader parse(std::string_view header) {
  auto const bytes = std::as_bytes(std::span{header});
  auto const length = npy_header_bytes(bytes.first(std::min(bytes.size(), npy_prefix_bytes)), "a.npy");
  return parse_npy_header(bytes.first(std::min(bytes.size(), length)), "a.npy");
}

std::string refusal(std::string_view header) {
  try {
    static_cast<void>(parse(header));
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, "a.npy");
    EXPECT_EQ(error.code, 0);
    return error.what();
  }
  return "accepted";
}

TEST(Npy, NumPysHeaderIsUnderstood) {
  // The bytes of numpy.save for a float32 array of shape (3, 4).
  auto header =
      with_prefix("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }" + std::string(58, ' ') + "\n");
  ASSERT_EQ(header.size(), 128U);
  auto const parsed = parse(header + "data");
  EXPECT_EQ(parsed.type->element, ElementType::f32);
  EXPECT_THAT(parsed.shape, ElementsAre(3, 4));
  EXPECT_EQ(parsed.data_offset, 128U);
  EXPECT_EQ(parsed.data_bytes, 48U);
}

TEST(Npy, AllVersionsAndOrdersOfKeysAreUnderstood) {
  for (char const major : {'\1', '\2', '\3'}) {
    auto const parsed = parse(with_prefix("{ \"shape\":( 7 , ), 'fortran_order' :False,'descr':'<u2'}\n", major));
    EXPECT_EQ(parsed.type->element, ElementType::u16);
    EXPECT_THAT(parsed.shape, ElementsAre(7));
    EXPECT_EQ(parsed.data_bytes, 14U);
  }
}

TEST(Npy, AScalarHasOneElement) {
  auto const scalar = parse(with_prefix("{'descr': '<i8', 'fortran_order': False, 'shape': (), }"));
  EXPECT_THAT(scalar.shape, IsEmpty());
  EXPECT_EQ(scalar.data_bytes, 8U);
  auto const empty =
      parse(with_prefix("{'descr': '<i8', 'fortran_order': False, 'shape': (18446744073709551615, 0, 9), }"));
  EXPECT_EQ(empty.data_bytes, 0U);
}

TEST(Npy, EveryElementAndShapeIsReadBack) {
  std::vector<std::vector<std::uint64_t>> const shapes{{}, {0}, {5}, {3, 4}, {1, 2, 3, 4, 5}, {1ULL << 40, 0}};
  for (auto const element : all_element_types) {
    for (auto const& shape : shapes) {
      auto const header = format_npy_header(element, shape);
      EXPECT_EQ(header.size() % 64, 0U);
      EXPECT_EQ(header.back(), '\n');
      EXPECT_EQ(header[6], '\1');
      auto const parsed = parse(header);
      EXPECT_EQ(parsed.type->element, element);
      EXPECT_EQ(parsed.shape, shape);
      EXPECT_EQ(parsed.data_offset, header.size());
    }
  }
}

TEST(Npy, TypesThatStreamsDoNotKnowAreReadBackToo) {
  std::vector<std::string> unknown;
  for (auto const& type : tensor_types()) {
    if (type.npy.empty() || type.element) continue;
    auto const parsed = parse(format_npy_header(type, std::vector<std::uint64_t>{3, 4}));
    EXPECT_EQ(parsed.type, &type);
    EXPECT_EQ(parsed.data_bytes, 12 * type.bytes);
    unknown.emplace_back(type.name);
    try {
      static_cast<void>(element_of(parsed, "a.npy"));
      ADD_FAILURE() << type.name;
    } catch (IoError const& error) {
      EXPECT_THAT(error.what(), HasSubstr(type.npy));
    }
  }
  EXPECT_THAT(unknown, ElementsAre("bool", "float16", "complex64", "complex128"));
}

TEST(Npy, ALongShapeIsWrittenAsVersion2) {
  std::vector<std::uint64_t> const shape(30'000, 1);
  auto const header = format_npy_header(ElementType::u8, shape);
  EXPECT_EQ(header[6], '\2');
  EXPECT_EQ(parse(header).shape, shape);
}

TEST(Npy, EachThingThatIsWrongIsNamed) {
  auto const dictionary = [](std::string_view descr, std::string_view order, std::string_view shape) {
    return with_prefix("{'descr': " + std::string(descr) + ", 'fortran_order': " + std::string(order) +
                       ", 'shape': " + std::string(shape) + ", }\n");
  };
  struct {
    std::string header;
    std::string message;
  } const refused[] = {
      {"", "does not begin"},
      {"\x93NUMP", "does not begin"},
      {"NUMPY, or so it says", "does not begin"},
      {std::string("\x93NUMPY\x01\0", 8), "ends within it"},
      {std::string("\x93NUMPY\x04\0\0\0\0\0\0", 13), "version 4.0"},
      {std::string("\x93NUMPY\x01\x01\0\0\0\0", 12), "version 1.1"},
      {std::string("\x93NUMPY\x02\0\xFF\xFF\xFF\xFF", 12), "4294967295 bytes long"},
      {with_prefix("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }").substr(0, 40), "ends within it"},
      {with_prefix(""), "'{' expected"},
      {with_prefix("{}"), "descr, fortran_order and shape are needed"},
      {with_prefix("{'descr': '<f4', 'shape': (3,), }"), "are needed"},
      {with_prefix("{'descr': '<f4', 'descr': '<f4', }"), "descr is there twice"},
      {with_prefix("{'shape': (3,), 'shape': (3,), }"), "shape is there twice"},
      {with_prefix("{'fortran_order': False, 'fortran_order': False}"), "fortran_order is there twice"},
      {with_prefix("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}"), "unknown key 'more'"},
      {with_prefix("{'a\nb\x1b[31m\xe9': 1}"), "unknown key 'a?b?[31m?'"},
      {with_prefix("{'" + std::string(500, 'k') + "': 1}"), "unknown key '" + std::string(40, 'k') + "…'"},
      {with_prefix("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } x"), "something follows"},
      {with_prefix("{'descr': '<f4' 'fortran_order': False}"), "',' expected"},
      {with_prefix("{'descr' '<f4'}"), "':' expected"},
      {with_prefix("{descr: '<f4'}"), "a quoted string expected"},
      {with_prefix("{'descr: <f4}"), "a string does not end"},
      {dictionary("''", "False", "(3,)"), "descr is empty"},
      {dictionary("'<f4'", "True", "(3,)"), "Fortran order"},
      {dictionary("'<f4'", "0", "(3,)"), "neither True nor False"},
      {dictionary("'>f4'", "False", "(3,)"), "big-endian dtype '>f4'"},
      {dictionary("'<f16'", "False", "(3,)"), "dtype '<f16'"},
      {dictionary("'<V2'", "False", "(3,)"), "dtype '<V2'"},
      {dictionary("'>c8'", "False", "(3,)"), "big-endian dtype '>c8'"},
      {dictionary("'<f\n2'", "False", "(3,)"), "dtype '<f?2'"},
      {dictionary("'|O'", "False", "(3,)"), "dtype '|O'"},
      {dictionary("'<U5'", "False", "(3,)"), "dtype '<U5'"},
      {dictionary("'<M8[ns]'", "False", "(3,)"), "dtype '<M8[ns]'"},
      {dictionary("[('a', '<f4')]", "False", "(3,)"), "structured dtype"},
      {dictionary("'<f4'", "False", "(-3,)"), "a tuple of counts"},
      {dictionary("'<f4'", "False", "(3)"), "a tuple of counts"},
      {dictionary("'<f4'", "False", "(3.5,)"), "',' expected"},
      {dictionary("'<f4'", "False", "(3 4)"), "',' expected"},
      {dictionary("'<f4'", "False", "(,)"), "a tuple of counts"},
      {dictionary("'<f4'", "False", "[3]"), "'(' expected"},
      {dictionary("'<f4'", "False", "(18446744073709551616,)"), "does not fit 64 bits"},
      {dictionary("'<f4'", "False", "(4611686018427387904, 4)"), "does not fit 64 bits"},
  };
  for (auto const& [header, message] : refused) {
    EXPECT_THAT(refusal(header), HasSubstr(message)) << header;
    EXPECT_THAT(refusal(header), StartsWith("a.npy: ")) << header;
  }
}

/// Headers damaged at random: whatever is accepted must mean the same when written out again, and nothing may do worse
/// than throw.
class NpyFuzz : public ::testing::TestWithParam<unsigned> {};

TEST_P(NpyFuzz, DamagedHeadersAreRefusedOrUnderstood) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937 random{GetParam()};
  auto const good = with_prefix("{'descr': '<i4', 'fortran_order': False, 'shape': (12, 3), }   \n");
  int understood = 0;
  for (int round = 0; round < 50'000; ++round) {
    auto header = good;
    for (auto damages = 1 + random() % 3; damages > 0; --damages) {
      auto const at = random() % header.size();
      switch (random() % 4) {
        case 0:
          header[at] = static_cast<char>(random());
          break;
        case 1:
          header.erase(at, 1 + random() % 4);
          break;
        case 2:
          header.insert(at, 1, "'{}(),: <f4\n\0"[random() % 14]);
          break;
        default:
          header[at] = header[random() % header.size()];
      }
    }
    try {
      auto const parsed = parse(header);
      ASSERT_EQ(parse(format_npy_header(*parsed.type, parsed.shape)).shape, parsed.shape);
      ++understood;
    } catch (IoError const&) {
    }
  }
  EXPECT_GT(understood, 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, NpyFuzz, ::testing::Values(1U, 2U, 2026U));

}  // namespace
}  // namespace unimem::detail
