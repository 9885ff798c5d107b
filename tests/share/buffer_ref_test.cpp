#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sanitizers.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

static_assert(std::is_trivially_copyable_v<BufferRef>);
static_assert(sizeof(BufferRef::Wire) == 40);
static_assert(element_tag<float>() == ElementTag::f32 && element_tag<double>() == ElementTag::f64);
static_assert(element_tag<long>() == element_tag<long long>() && element_tag<std::uint16_t>() == ElementTag::u16);
static_assert(element_tag<bool>() == ElementTag::boolean && element_tag<std::byte>() == ElementTag::byte);
static_assert(element_tag<long double>() == ElementTag::other && element_tag<BufferRef>() == ElementTag::other);

/// CRC-32 bit by bit, written for the tests alone.
std::uint32_t checksum(std::span<const std::byte> bytes) {
  std::uint32_t value = 0xFFFF'FFFF;
  for (auto const byte : bytes) {
    value ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? (value >> 1) ^ 0xEDB8'8320 : value >> 1;
  }
  return ~value;
}

/// Gives a message that was tampered with the checksum it then should have.
void sign(BufferRef::Wire& wire) {
  auto const value = checksum(std::span{wire}.first<36>());
  for (std::size_t i = 0; i < 4; ++i) wire[36 + i] = static_cast<std::byte>((value >> (8 * i)) & 0xFF);
}

std::string hexadecimal(BufferRef::Wire const& wire) {
  std::string text;
  for (auto const byte : wire) {
    constexpr auto* digits = "0123456789abcdef";
    text += digits[std::to_integer<unsigned>(byte) / 16];
    text += digits[std::to_integer<unsigned>(byte) % 16];
  }
  return text;
}

/// What a message is refused for; empty if it is not.
std::string refusal(std::span<const std::byte> bytes) {
  try {
    std::ignore = BufferRef::from_wire(bytes);
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "buffer reference");
    return error.what();
  }
  return {};
}

class BufferRefs : public BufferTest {
 protected:
  BufferRegistry shared;
};

TEST_F(BufferRefs, NameElementsOfABufferInPlace) {
  auto buffer = synchronized();
  auto const id = shared.publish(buffer);
  auto window = shared.resolve<std::uint32_t>({id, 20, 10});
  EXPECT_EQ(window.host_view().data(), std::as_const(buffer).host_view().data() + 20);
  EXPECT_EQ(window.to_vector(), counting(10, 20));
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400, 1, 0, 0})) << "the upload of before";
  window.fill(5);
  auto expected = counting(100);
  std::fill_n(expected.begin() + 20, 10, 5U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(shared.resolve<std::uint32_t>({id}).size(), 100U) << "all of it, where nothing is said";
  EXPECT_EQ(shared.resolve<std::uint32_t>({id, 90}).to_vector(), counting(10, 90)) << "to the end";
}

TEST_F(BufferRefs, AsBytesElementsOfAnyTypeAreGiven) {
  auto const buffer = synchronized();
  auto const id = shared.publish(buffer);
  auto const bytes = shared.resolve({id, 20, 10});
  static_assert(std::is_same_v<decltype(bytes), BufferSlice<std::byte> const>);
  EXPECT_EQ(bytes.range(), (ByteRange{80, 120})) << "offset and count are in the buffer's own elements";
  EXPECT_EQ(bytes.as<std::uint32_t>().to_vector(), counting(10, 20));
}

TEST_F(BufferRefs, AreCheckedWhenTheRegistryMakesThem) {
  UnifiedBuffer<float> const buffer({10, 10}, on_sim());
  auto const id = shared.publish(buffer);
  EXPECT_EQ(shared.refer(id), (BufferRef{id, 0, 100, ElementTag::f32}));
  EXPECT_EQ(shared.refer(id, 40), (BufferRef{id, 40, 60, ElementTag::f32}));
  EXPECT_EQ(shared.refer(id, 100, 0), (BufferRef{id, 100, 0, ElementTag::f32}));
  EXPECT_THROW(std::ignore = shared.refer(id, 0, 101), InvalidArgument);
  EXPECT_THROW(std::ignore = shared.refer(id, 101), InvalidArgument);
}

TEST_F(BufferRefs, WindowsThatEscapeAreRefusedWhateverTheNumbers) {
  auto const buffer = synchronized();
  auto const id = shared.publish(buffer);
  for (auto const& [offset, count] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 101},
                                                        {100, 1},
                                                        {101, 0},
                                                        {50, 51},
                                                        {101, all},
                                                        {most, 0},
                                                        {most, 1},
                                                        {most, all},
                                                        {0, most - 1},
                                                        {1, most - 1},
                                                        {most - 1, 2},
                                                        {most / 2, most / 2 + 2},
                                                        {most / 4 + 1, 4},
                                                        {0, most / 4 + 1},
                                                        {std::size_t{1} << 62, std::size_t{1} << 62},
                                                        {50, std::size_t{1} << 63}}) {
    SCOPED_TRACE(::testing::Message() << count << " from " << offset);
    BufferRef const escaping{id, offset, count, ElementTag::u32};
    EXPECT_THROW(std::ignore = shared.resolve<std::uint32_t>(escaping), InvalidArgument);
    EXPECT_THROW(std::ignore = shared.resolve(escaping), InvalidArgument);
    EXPECT_EQ(BufferRef::from_wire(escaping.to_wire()), escaping) << "it travels, and is refused where it is used";
  }
  EXPECT_TRUE(shared.resolve<std::uint32_t>({id, 100, 0}).empty());
  EXPECT_EQ(shared.statistics().opened, 1U);
}

TEST_F(BufferRefs, TheElementTagMustBeTheBuffers) {
  auto const buffer = synchronized(100, "frame");
  auto const id = shared.publish(buffer);
  EXPECT_EQ(shared.resolve<std::uint32_t>({id, 0, 1, ElementTag::u32}).size(), 1U);
  for (auto const wrong : {ElementTag::i32, ElementTag::f32, ElementTag::u64, ElementTag::byte, ElementTag::other,
                           static_cast<ElementTag>(77)}) {
    try {
      std::ignore = shared.resolve<std::uint32_t>({id, 0, 1, wrong});
      FAIL() << "was resolved";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "element tag");
      EXPECT_EQ(error.value, to_string(wrong));
      EXPECT_EQ(error.requirement, "u32, as buffer 'frame' has them");
    }
    EXPECT_THROW(std::ignore = shared.resolve({id, 0, 1, wrong}), InvalidArgument) << "as bytes too";
  }
}

TEST(BufferRefWire, IsTheDocumentedFortyBytes) {
  BufferRef const ref{{0x0123'4567'89AB'CDEF, 42}, 1000, 24, ElementTag::f32};
  EXPECT_EQ(hexadecimal(ref.to_wire()),
            "7542010befcdab89674523012a00000000000000e8030000000000001800000000000000304963e9");
  EXPECT_EQ(hexadecimal(BufferRef{}.to_wire()),
            "75420100000000000000000000000000000000000000000000000000ffffffffffffffff7f74f2cc");
  EXPECT_EQ(BufferRef::from_wire(ref.to_wire()), ref);
  EXPECT_EQ(BufferRef::from_wire(BufferRef{}.to_wire()), BufferRef{});
}

TEST(BufferRefWire, IsRefusedForWhatIsWrongWithIt) {
  auto const good = BufferRef{{7, 42}, 1000, 24, ElementTag::f32}.to_wire();
  for (std::size_t length = 0; length < 40; ++length) {
    EXPECT_THAT(refusal(std::span{good}.first(length)), HasSubstr("'" + std::to_string(length) + " bytes'"));
  }
  std::array<std::byte, 41> longer{};
  std::ranges::copy(good, longer.begin());
  EXPECT_THAT(refusal(longer), HasSubstr("'41 bytes'"));

  auto letters = good;
  letters[1] = std::byte{'C'};
  sign(letters);
  EXPECT_THAT(refusal(letters), HasSubstr("beginning with 75 43"));
  letters[0] = std::byte{'v'};
  letters[1] = std::byte{'B'};
  sign(letters);
  EXPECT_THAT(refusal(letters), HasSubstr("beginning with 76 42"));
  auto later = good;
  later[2] = std::byte{2};
  sign(later);
  EXPECT_THAT(refusal(later), HasSubstr("'version 2': must be of version 1"));
  auto tagged = good;
  tagged[3] = std::byte{13};
  sign(tagged);
  EXPECT_THAT(refusal(tagged), HasSubstr("element tag 13"));
  auto changed = good;
  changed[20] = std::byte{0};
  EXPECT_THAT(refusal(changed), HasSubstr("checksum"));
}

TEST(BufferRefWire, OneOrTwoFlippedBitsAreNoticed) {
  auto const good = BufferRef{{0x0123'4567'89AB'CDEF, 42}, 1000, 24, ElementTag::f32}.to_wire();
  auto const flip = [](BufferRef::Wire wire, std::size_t bit) {
    wire[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    return wire;
  };
  for (std::size_t bit = 0; bit < 320; ++bit) {
    auto const once = flip(good, bit);
    ASSERT_FALSE(refusal(once).empty()) << "bit " << bit;
    for (std::size_t other = bit + 1; other < 320; other += 7) {
      ASSERT_FALSE(refusal(flip(once, other)).empty()) << "bits " << bit << " and " << other;
    }
  }
}

TEST(BufferRefWire, RandomBytesAreRefusedOrValid) {
  constexpr int rounds = detail::is_sanitized ? 500 : 5'000;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random{seed};
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::byte> noise(random() % 4 == 0 ? random() % 100 : 40);
      for (auto& byte : noise) byte = static_cast<std::byte>(random());
      ASSERT_FALSE(refusal(noise).empty()) << "a chance of one in 2^56 for each";
      if (noise.size() != 40) continue;
      // What passes the letters, the version and the checksum is read as it stands.
      BufferRef::Wire wire;
      std::ranges::copy(noise, wire.begin());
      wire[0] = std::byte{'u'};
      wire[1] = std::byte{'B'};
      wire[2] = std::byte{1};
      sign(wire);
      auto const tag = static_cast<ElementTag>(wire[3]);
      if (to_string(tag) == "unknown") {
        ASSERT_THAT(refusal(wire), HasSubstr("element tag"));
      } else {
        ASSERT_EQ(BufferRef::from_wire(wire).to_wire(), wire);
      }
    }
  }
}

TEST_F(BufferRefs, RandomReferencesAreInsideOrRefused) {
  auto const buffer = synchronized();
  auto const values = counting(100);
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random{seed};
    std::vector<BufferId> ids{{}, {random(), 1}};
    for (int i = 0; i < 8; ++i) ids.push_back(shared.publish(buffer));
    for (std::size_t i = 2; i < 6; ++i) shared.release(ids[i]);
    // Near the ends of the buffer and of the numbers, where sums wrap.
    auto const number = [&]() -> std::size_t {
      switch (random() % 4) {
        case 0:
          return random() % 104;
        case 1:
          return most - random() % 104;
        case 2:
          return (std::size_t{1} << (random() % 64)) + random() % 3 - 1;
        default:
          return random();
      }
    };
    int resolved = 0;
    for (int round = 0; round < 3000; ++round) {
      auto const index = random() % ids.size();
      auto const tag = random() % 3 == 0 ? static_cast<ElementTag>(random() % 13) : ElementTag::u32;
      BufferRef const ref{ids[index], number(), number(), tag};
      auto const received = BufferRef::from_wire(ref.to_wire());
      ASSERT_EQ(received, ref);
      bool const known = index >= 6;
      bool const fits_type = tag == ElementTag::u32 || tag == ElementTag::any;
      bool const fits = ref.offset <= 100 && (ref.count == all || ref.count <= 100 - ref.offset);
      try {
        auto const window = shared.resolve<std::uint32_t>(received);
        ASSERT_TRUE(known && fits_type && fits);
        auto const count = ref.count == all ? 100 - ref.offset : ref.count;
        auto const expected = std::span{values}.subspan(ref.offset, count);
        ASSERT_EQ(window.to_vector(), (std::vector<std::uint32_t>(expected.begin(), expected.end())));
        ++resolved;
      } catch (NotFound const&) {
        ASSERT_FALSE(known);
      } catch (InvalidArgument const&) {
        ASSERT_TRUE(known && !(fits_type && fits));
      }
    }
    EXPECT_GT(resolved, 10) << "or nothing was shown";
    for (std::size_t i = 6; i < ids.size(); ++i) shared.release(ids[i]);
  }
  shared.validate();
}

}  // namespace
}  // namespace unimem::testing
