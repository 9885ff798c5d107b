#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "kernel/on_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <complex>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace unimem {

/// A device that compiles the source form, and how its own language begins a kernel and a pointer.
struct ArgumentCase {
  std::string name;    ///< letters, digits and underscores
  std::string device;  ///< as `device()` takes it
  std::string kernel;  ///< "__kernel void"
  std::string global;  ///< "__global"
  std::string vector_of_four_floats = "float4";
};

inline std::ostream& operator<<(std::ostream& out, ArgumentCase const& device) {
  return out << device.name;
}

inline std::string argument_case_name(::testing::TestParamInfo<ArgumentCase> const& info) {
  return info.param.name;
}

struct Particle {
  float x, y, z;
  std::int32_t kind;
};

enum class Color : std::int32_t { red = 7 };

/// What source kernels take, and that nothing has moved where they do not.
class SourceArguments : public ::testing::TestWithParam<ArgumentCase>, protected OnDevice {
 protected:
  SourceArguments() : OnDevice(GetParam().device) {}

  template <class T>
  static std::string_view name_of() {
    if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? "unimem_f32" : "unimem_f64";
    constexpr std::string_view names[2][4] = {{"unimem_u8", "unimem_u16", "unimem_u32", "unimem_u64"},
                                              {"unimem_i8", "unimem_i16", "unimem_i32", "unimem_i64"}};
    return names[std::is_signed_v<T>][sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3];
  }

  BufferOptions here() {
    auto options = OnDevice::here();
    options.name = "given";
    return options;
  }

  /// A buffer that is current on the host alone: what moves is seen.
  template <class T>
  UnifiedBuffer<T> made(std::size_t count = 8) {
    UnifiedBuffer<T> buffer(count, here());
    std::vector<T> const values(count, T{});
    buffer.copy_from(values);
    return buffer;
  }

  template <class T>
  static void expect_untouched(UnifiedBuffer<T>& buffer, std::string_view what) {
    auto const moved = buffer.statistics();
    EXPECT_EQ(moved.host_to_device_copies + moved.device_to_host_copies, 0U) << what;
    EXPECT_EQ(buffer.state(), BufferState::host_dirty) << what;
  }

  /// The reason of a refused launch; "accepted" if it was none.
  template <class... A>
  std::string reason(Kernel const& kernel, A const&... arguments) {
    try {
      launch(queue, kernel, Range{1}, arguments...).wait();
    } catch (KernelError const& error) {
      return error.reason + error.build_log;
    }
    return "accepted";
  }

  Kernel portable(std::string const& parameters, std::string const& body, std::string const& before = "") const {
    return Kernel("entry").source(before + "UNIMEM_KERNEL entry(" + parameters + ") { " + body + " }");
  }
  Kernel plain(std::string const& parameters, std::string const& body, std::string const& before = "") const {
    return Kernel("entry").source(before + GetParam().kernel + " entry(" + parameters + ") { " + body + " }");
  }
  std::string pointer(std::string_view type, std::string_view name) const {
    return GetParam().global + " " + std::string(type) + "* " + std::string(name);
  }

  /// Both forms of a kernel over one buffer `x` of `type` and scalars.
  std::vector<Kernel> both(std::string_view type, bool is_const, std::string const& scalars, std::string const& store,
                           std::string const& before = "") const {
    auto const text = std::string(type), qualified = (is_const ? "const " : "") + text;
    auto const macro = std::string(is_const ? "UNIMEM_CONST_BUFFER(" : "UNIMEM_BUFFER(") + text + ", x)";
    auto const data = is_const ? std::string() : "UNIMEM_DATA(" + text + ", x)[0] = " + store + ";";
    return {portable(macro + scalars, data, before),
            plain(pointer(qualified, "x") + scalars, is_const ? "" : "x[0] = " + store + ";", before)};
  }

  /// Calls `with` for a value of each number type that the device has.
  template <class F>
  void for_each_number(F with) {
    with(std::int8_t{}), with(std::uint8_t{}), with(std::int16_t{}), with(std::uint16_t{}), with(std::int32_t{});
    with(std::uint32_t{}), with(std::int64_t{}), with(std::uint64_t{}), with(float{});
    if (on.info().doubles) with(double{});
  }

  Queue& queue = on.default_queue();
};

/// Whether a kernel's scalar of type P takes the value `a`.
template <class P, class A>
bool takes(A a) {
  if constexpr (std::is_integral_v<P> && std::is_integral_v<A>) {
    return std::in_range<P>(a);
  } else {
    return std::is_same_v<P, A>;
  }
}

TEST_P(SourceArguments, ScalarsAreTakenByTypeAndValue) {
  for_each_number([&](auto parameter) {
    using P = decltype(parameter);
    auto const type = std::string(name_of<P>());
    for (auto const& kernel : both(type, false, ", " + type + " value", "value")) {
      for_each_number([&](auto argument) {
        using A = decltype(argument);
        for (A const value : {A{3}, std::numeric_limits<A>::max(), std::numeric_limits<A>::lowest()}) {
          auto const what = type + " given " + std::string(name_of<A>()) + " " + std::to_string(value);
          auto out = made<P>();
          auto const why = reason(kernel, readwrite(out), value);
          if (takes<P>(value)) {
            EXPECT_EQ(why, "accepted") << what;
            EXPECT_EQ(out.host_view()[0], static_cast<P>(value)) << what;
          } else {
            EXPECT_THAT(why, ::testing::HasSubstr("argument 2 for parameter")) << what;
            expect_untouched(out, what);
          }
        }
      });
    }
  });
}

TEST_P(SourceArguments, BuffersAreTakenByElement) {
  for_each_number([&](auto parameter) {
    using P = decltype(parameter);
    for (auto const& kernel : both(name_of<P>(), false, "", "5")) {
      for_each_number([&](auto argument) {
        using A = decltype(argument);
        auto const what = std::string(name_of<P>()) + " given " + std::string(name_of<A>());
        auto x = made<A>();
        auto const why = reason(kernel, readwrite(x));
        if constexpr (std::is_same_v<P, A>) {
          EXPECT_EQ(why, "accepted") << what;
          EXPECT_EQ(x.host_view()[0], P{5}) << what;
        } else {
          EXPECT_THAT(why, ::testing::HasSubstr("argument 1 ('given') for parameter")) << what;
          expect_untouched(x, what);
        }
      });
    }
  });
}

TEST_P(SourceArguments, IntentsGoWithQualifiers) {
  for (bool const is_const : {false, true}) {
    for (auto const& kernel : both("unimem_f32", is_const, "", "9")) {
      auto x = made<float>();
      EXPECT_THAT(reason(kernel, read(x)), is_const ? ::testing::HasSubstr("accepted")
                                                    : ::testing::HasSubstr("passed as read, and the parameter may"));
      EXPECT_EQ(x.host_view()[0], 0.0F);
      auto y = made<float>();
      EXPECT_THAT(reason(kernel, write(y)), is_const
                                                ? ::testing::HasSubstr("passed as write, and the parameter is const")
                                                : ::testing::HasSubstr("accepted"));
      if (is_const) expect_untouched(y, "write of a const parameter");
      auto z = made<float>();
      EXPECT_EQ(reason(kernel, readwrite(z)), "accepted");
      EXPECT_EQ(z.host_view()[0], is_const ? 0.0F : 9.0F);
    }
  }
}

TEST_P(SourceArguments, UntypedBytesAreTakenWhereTheyFit) {
  for (auto const& kernel : both("unimem_f32", false, "", "9")) {
    auto x = made<std::byte>(16);
    EXPECT_EQ(reason(kernel, readwrite(x)), "accepted");
    EXPECT_EQ(x.as<float>().to_vector()[0], 9.0F);
    auto odd = made<std::byte>(18);
    EXPECT_THAT(reason(kernel, readwrite(odd)), ::testing::HasSubstr("has 18 bytes, no multiple of the element's 4"));
    EXPECT_THAT(reason(kernel, readwrite(odd, 2, 16)), ::testing::HasSubstr("starts at byte 2"));
    expect_untouched(odd, "bytes that are no floats");
  }
}

TEST_P(SourceArguments, StructuresAreTakenBySize) {
  std::string const particle = "typedef struct { float x, y, z; int kind; } Particle;\n";
  for (auto const& kernel : {portable("UNIMEM_BUFFER(Particle, x)", "UNIMEM_DATA(Particle, x)[0].kind = 3;", particle),
                             plain(pointer("Particle", "x"), "x[0].kind = 3;", particle)}) {
    auto x = made<Particle>();
    EXPECT_EQ(reason(kernel, readwrite(x)), "accepted");
    EXPECT_EQ(x.host_view()[0].kind, 3);
    auto small = made<std::complex<float>>(8);
    EXPECT_THAT(reason(kernel, readwrite(small)), ::testing::HasSubstr("the kernel takes a structure of 16 bytes"));
    expect_untouched(small, "a smaller structure");
    auto numbers = made<float>(16);
    EXPECT_THAT(reason(kernel, readwrite(numbers)), ::testing::HasSubstr("is a buffer of float"));
    expect_untouched(numbers, "numbers");
  }
}

TEST_P(SourceArguments, LargeStructuresAreTakenBySize) {
  struct Large {
    std::array<float, 25'001> all;
  };
  std::string const large = "typedef struct { float all[25001]; } Large;\n";
  for (auto const& kernel : {portable("UNIMEM_BUFFER(Large, x)", "UNIMEM_DATA(Large, x)[1].all[25000] = 3;", large),
                             plain(pointer("Large", "x"), "x[1].all[25000] = 3;", large)}) {
    auto x = made<Large>(2);
    EXPECT_EQ(reason(kernel, readwrite(x)), "accepted");
    EXPECT_EQ(x.host_view()[1].all[25'000], 3.0F);
    auto small = made<Particle>(6'251);
    EXPECT_THAT(reason(kernel, readwrite(small)), ::testing::HasSubstr("the kernel takes a structure of 100004 bytes"));
    expect_untouched(small, "a smaller structure");
  }
}

TEST_P(SourceArguments, StructuresByValueAreTakenBySize) {
  struct Pair {
    float x, y;
  };
  std::string const particle =
      "typedef struct { float x, y, z; int kind; } Particle;\nstruct Pair { float x, y; };\ntypedef struct Pair "
      "Pair;\n";
  for (auto const& kernel : both("unimem_f32", false, ", Particle p, Pair q", "p.kind + p.z + q.y", particle)) {
    auto x = made<float>();
    EXPECT_EQ(reason(kernel, readwrite(x), Particle{1, 2, 3, 4}, Pair{5, 6}), "accepted");
    EXPECT_EQ(x.host_view()[0], 13.0F);
    auto y = made<float>();
    auto const refused = [&](auto const& p, auto const& q, std::string const& why) {
      EXPECT_THAT(reason(kernel, readwrite(y), p, q), ::testing::HasSubstr(why));
    };
    refused(Pair{}, Pair{}, "argument 2 for parameter");
    refused(Pair{}, Pair{}, "the kernel takes a structure of 16 bytes");
    refused(Particle{}, Particle{}, "the kernel takes a structure of 8 bytes");
    refused(Particle{}, std::array<float, 3>{}, "the kernel takes a structure of 8 bytes");
    refused(Particle{}, std::uint64_t{}, "the kernel takes a structure of 8 bytes");
    refused(Particle{}, 1.0, "is 1 of type double, the kernel takes a structure of 8 bytes");
    expect_untouched(y, "structures of other sizes");
  }
}

TEST_P(SourceArguments, VectorsTakeTheirNumber) {
  auto const& four = GetParam().vector_of_four_floats;
  for (auto const& kernel : {portable("UNIMEM_BUFFER(" + four + ", x)", "UNIMEM_DATA(" + four + ", x)[0].y = 3;"),
                             plain(pointer(four, "x"), "x[0].y = 3;")}) {
    auto x = made<float>(8);
    EXPECT_EQ(reason(kernel, readwrite(x)), "accepted");
    EXPECT_EQ(x.host_view()[1], 3.0F);
    auto structures = made<Particle>();
    EXPECT_EQ(reason(kernel, readwrite(structures)), "accepted");
    EXPECT_EQ(structures.host_view()[0].y, 3.0F);
    auto short_one = made<float>(6);
    EXPECT_THAT(reason(kernel, readwrite(short_one)), ::testing::HasSubstr("no multiple of the element's 16"));
    auto integers = made<std::int32_t>(8);
    EXPECT_THAT(reason(kernel, readwrite(integers)), ::testing::HasSubstr("is a buffer of int"));
    expect_untouched(integers, "integers");
  }
}

TEST_P(SourceArguments, ATypedefOfTheSourceIsResolved) {
  for (auto const& kernel :
       both("real", false, ", real value, index n", "value", "typedef float real; typedef unsigned int index;\n")) {
    auto x = made<float>();
    EXPECT_EQ(reason(kernel, readwrite(x), 2.5F, 3), "accepted");
    EXPECT_EQ(x.host_view()[0], 2.5F);
    auto integers = made<std::int32_t>();
    EXPECT_THAT(reason(kernel, readwrite(integers), 2.5F, 3), ::testing::HasSubstr("is a buffer of int"));
    EXPECT_THAT(reason(kernel, readwrite(integers.as<std::byte>()), 2, 3), ::testing::HasSubstr("is 2 of type int"));
    EXPECT_THAT(reason(kernel, readwrite(integers.as<std::byte>()), 2.5F, -3),
                ::testing::HasSubstr("is -3, which u32 does not hold"));
    expect_untouched(integers, "integers for reals");
  }
}

TEST_P(SourceArguments, EnumerationsAndBooleansAreIntegers) {
  for (auto const& kernel : both("unimem_i32", false, ", unimem_i32 value", "value")) {
    auto x = made<std::int32_t>();
    EXPECT_EQ(reason(kernel, readwrite(x), Color::red), "accepted");
    EXPECT_EQ(x.host_view()[0], 7);
    EXPECT_EQ(reason(kernel, readwrite(x), true), "accepted");
    EXPECT_EQ(x.host_view()[0], 1);
    EXPECT_THAT(reason(kernel, readwrite(x), Particle{}), ::testing::HasSubstr("the kernel takes i32"));
  }
}

TEST_P(SourceArguments, AScalarTooFewIsNoHiddenOffset) {
  auto const kernel = plain(pointer("unimem_f32", "x") + ", unimem_u64 count", "x[0] = (unimem_f32)count;");
  auto x = made<float>();
  EXPECT_THAT(reason(kernel, readwrite(x)), ::testing::HasSubstr("launched with 1 arguments, takes 2"));
  expect_untouched(x, "a scalar too few");
  EXPECT_EQ(reason(kernel, readwrite(x), 4), "accepted");
  EXPECT_EQ(x.host_view()[0], 4.0F);
}

}  // namespace unimem
