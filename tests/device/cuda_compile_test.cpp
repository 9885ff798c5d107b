#include <unimem/core/error.hpp>

#include "device/conformance_kernels.hpp"
#include "device/cuda/kernel_compiler.hpp"
#include "device/cuda/piece_kernel.hpp"
#include "device/fast_math.hpp"
#include "device/source_kernels.hpp"
#include "device/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

// What NVRTC itself makes of kernel sources. It needs no GPU, and nothing here runs.

namespace unimem {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);  // its kernels are compiled here, and not run

namespace {

using detail::kernels_in;
using detail::cuda::KernelCache;
using detail::cuda::KernelCompiler;
using detail::cuda::load_nvrtc;
using detail::cuda::LoadedNvrtc;
using detail::cuda::NvrtcProgram;
using detail::cuda::NvrtcResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int driver_version = 12040;

/// The real compiler, counting what it compiles.
class CudaCompile : public ::testing::Test {
 protected:
  CudaCompile() {
    setenv("UNIMEM_NVRTC_LIBRARY", UNIMEM_NVRTC, 1);
    nvrtc_ = load_nvrtc(driver_version);
    unsetenv("UNIMEM_NVRTC_LIBRARY");
    compile_now = nvrtc_.nvrtc.nvrtcCompileProgram;
    compilations = 0;
    nvrtc_.nvrtc.nvrtcCompileProgram = [](NvrtcProgram program, int count, char const* const* options) {
      ++compilations;
      return compile_now(program, count, options);
    };
  }

  void SetUp() override { ASSERT_THAT(nvrtc_.problem, IsEmpty()); }

  [[nodiscard]] KernelCompiler compiler(KernelCache cache = {}) const {
    return KernelCompiler{nvrtc_, driver_version, std::move(cache)};
  }

  /// The architectures to serve: from Turing on.
  [[nodiscard]] std::vector<int> architectures() const {
    std::vector<int> result;
    std::ranges::copy_if(nvrtc_.architectures, std::back_inserter(result), [](int each) { return each >= 75; });
    return result;
  }

  /// The KernelError of compiling this.
  [[nodiscard]] KernelError refusal(ProgramSource const& source) const {
    try {
      static_cast<void>(compiler().compile(source, 90, "cuda:0"));
    } catch (KernelError const& error) {
      return error;
    }
    ADD_FAILURE() << "it compiled";
    return {"", ""};
  }

  void expect_machine_code_for_all(ProgramSource const& source, bool portable) const {
    for (auto const architecture : architectures()) {
      SCOPED_TRACE(source.name + " for sm_" + std::to_string(architecture));
      auto const kernel = compiler().compile(source, architecture, "cuda:0");
      EXPECT_THAT(kernel.image, StartsWith("\177ELF"));
      EXPECT_THAT(kernel.image, HasSubstr(kernel.entry));
      EXPECT_EQ(kernel.portable, portable);
    }
  }

  LoadedNvrtc nvrtc_;
  static inline std::atomic<int> compilations = 0;
  static inline NvrtcResult (*compile_now)(NvrtcProgram, int, char const* const*) = nullptr;
};

/// Every piece of `text` between the two marks that has a portable kernel in it.
std::vector<std::string> sources_in(std::string const& text, std::string const& begin, std::string const& end) {
  std::vector<std::string> result;
  for (auto from = text.find(begin); from != std::string::npos; from = text.find(begin, from)) {
    from += begin.size();
    auto const to = text.find(end, from);
    if (auto source = text.substr(from, to - from); kernels_in(source).names_portable_form) {
      result.push_back(std::move(source));
    }
    if (to == std::string::npos) break;
    from = to + end.size();
  }
  return result;
}

TEST_F(CudaCompile, TurnsToTheNewestArchitectures) {
  auto const served = architectures();
  ASSERT_FALSE(served.empty());
  EXPECT_EQ(served.front(), 75);
  EXPECT_GE(served.back(), 90);
}

TEST_F(CudaCompile, TestKernelsBuildForAllArchitectures) {
  expect_machine_code_for_all(add_kernel(), true);
  expect_machine_code_for_all(coordinates_kernel(), true);
}

TEST_F(CudaCompile, PortableKernelsBuildForAllArchitectures) {
  std::filesystem::path const root{UNIMEM_SOURCE_FOLDER};
  std::set<std::filesystem::path> files{root / "docs/kernels.md", root / "tests/device/conformance_fixture.hpp",
                                        root / "tests/device/conformance_kernels.hpp"};
  for (auto const* const folder : {"examples", "tests/kernel", "tests/stream"}) {
    for (auto const& entry : std::filesystem::directory_iterator(root / folder)) {
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".hpp") files.insert(entry.path());
    }
  }
  std::set<std::string> compiled;
  for (auto const& file : files) {
    SCOPED_TRACE(file.string());
    bool const is_page = file.extension() == ".md";
    for (auto const& source : sources_in(content_of(file), is_page ? "```c\n" : "R\"(", is_page ? "```" : ")\"")) {
      for (auto const& name : kernels_in(source).portable) {
        expect_machine_code_for_all({name, source, nullptr}, true);
        compiled.insert(name);
      }
    }
  }
  EXPECT_THAT(compiled, IsSupersetOf({"distance", "axpy", "add", "coordinates", "scale", "reversing"}));
}

TEST_F(CudaCompile, TellsTheParametersOfAKernel) {
  using Kind = detail::cuda::Parameter::Kind;
  auto const kernel = compiler().compile({"norm", R"(
    typedef struct { float a[16]; } large;
    struct unfinished;
    UNIMEM_KERNEL norm(UNIMEM_CONST_BUFFER(unimem_f32, in), UNIMEM_BUFFER(unimem_u64, out), UNIMEM_BUFFER(large, many),
                       const double3* restrict_, void* any, const unfinished* some, unimem_u8 a, unimem_i8 b,
                       unimem_u16 c, unimem_i16 d, unimem_u32 e, unimem_i32 f, unimem_u64 g, unimem_i64 h, unimem_f32 i,
                       unimem_f64 j, float4 k, size_t l, const int m, large n) {})",
                                          nullptr},
                                         90, "cuda:0");
  using P = detail::cuda::Parameter;
  using Number = ValueType::Number;
  EXPECT_THAT(
      kernel.parameters,
      ::testing::ElementsAre(
          P{Kind::buffer, 8, true, {Number::floating, 4}}, P{Kind::buffer, 8, false, {Number::unsigned_integer, 8}},
          P{Kind::buffer, 8, false, {Number::none, 64}}, P{Kind::buffer, 8, true, {Number::floating, 8, 3}},
          P{Kind::buffer, 8, false, {}}, P{Kind::buffer, 8, true, {}}, P{Kind::unsigned_integer, 1},
          P{Kind::signed_integer, 1}, P{Kind::unsigned_integer, 2}, P{Kind::signed_integer, 2},
          P{Kind::unsigned_integer, 4}, P{Kind::signed_integer, 4}, P{Kind::unsigned_integer, 8},
          P{Kind::signed_integer, 8}, P{Kind::floating, 4}, P{Kind::floating, 8}, P{Kind::other, 16},
          P{Kind::unsigned_integer, 8}, P{Kind::signed_integer, 4}, P{Kind::other, 64}));
}

TEST_F(CudaCompile, ThePieceKernelBuildsForAllArchitectures) {
  expect_machine_code_for_all({"unimem_move_pieces", std::string(detail::cuda::piece_kernel), nullptr}, false);
  auto const kernel =
      compiler().compile({"unimem_move_pieces", std::string(detail::cuda::piece_kernel), nullptr}, 90, "");
  EXPECT_EQ(kernel.parameters.size(), 4U);
}

TEST_F(CudaCompile, AllNamesOfThePortableFormAreThere) {
  expect_machine_code_for_all({"everything", R"(
    #ifndef UNIMEM_CUDA
    #error which language is this
    #endif
    #if defined(UNIMEM_OPENCL) || !defined(UNIMEM_DOUBLES)
    #error no doubles
    #endif
    UNIMEM_FUNCTION unimem_f64 norm(unimem_f64 x, unimem_f64 y) { return sqrt(x * x + y * y); }
    UNIMEM_FUNCTION unimem_u64 number() { return (UNIMEM_ITEM_Z * 3 + UNIMEM_ITEM_Y) * 5 + UNIMEM_ITEM_X; }
    UNIMEM_KERNEL other(UNIMEM_BUFFER(unimem_f32, x)) { UNIMEM_DATA(unimem_f32, x)[0] = 0; }
    UNIMEM_KERNEL everything(UNIMEM_CONST_BUFFER(unimem_f32, in), UNIMEM_BUFFER(unimem_u32, out), unimem_f32 f) {
      const unimem_f32 x = UNIMEM_DATA(const unimem_f32, in)[number()];
      const unimem_f32 y = fabs(x) + floor(x) + ceil(x) + trunc(x) + round(x) + rint(x) + fmin(x, f) + fmax(x, f) +
                           fma(x, f, 1.0f) + sqrt(x) + exp(x) + log(x) + pow(x, f) + sin(x) + cos(x) + tan(x) +
                           exp2(x) + log2(x) + log10(x) + fmod(x, f) + hypot(x, f) + atan2(x, f) + copysign(x, f);
      const unimem_u32 z = (unimem_u32)norm(x, y) + min(3u, 4u) + max(-1, abs(-2)) + isnan(y) + isinf(y);
      UNIMEM_GLOBAL unimem_u32* to = UNIMEM_DATA(unimem_u32, out);
      to[1] = UNIMEM_ATOMIC_ADD_U32(to, z) + (unimem_u8)1 + (unimem_i8)1 + (unimem_u16)1 + (unimem_i16)1 +
              (unimem_i32)1 + (unimem_u32)(unimem_i64)1;
    })",
                               nullptr},
                              true);
}

TEST_F(CudaCompile, PlainCudaIsCompiledAsItStands) {
  expect_machine_code_for_all({"twice", R"(
    #define T no_name_of_ours_is_in_the_way
    extern "C" __global__ void twice(const float* in, float* out, unsigned count) {
      __shared__ float tile[256];
      unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
      tile[threadIdx.x % 256] = 2;
      __syncthreads();
      if (i < count) out[i] = tile[0] * in[i];
    })",
                               nullptr},
                              false);
  auto const plain =
      "template <class U> __global__ void fill(U* out, U value) { out[threadIdx.x] = value; }\n"
      "namespace a { __global__ void b() {} }";
  EXPECT_EQ(compiler().compile({"fill<double>", plain, nullptr}, 90, "cuda:0").parameters.size(), 2U);
  EXPECT_EQ(compiler().compile({"a::b", plain, nullptr}, 90, "cuda:0").entry, "_ZN1a1bEv");
}

TEST_F(CudaCompile, APlainKernelMayStandBesidePortableOnes) {
  auto const source = "UNIMEM_KERNEL one(UNIMEM_BUFFER(float, x)) {}\n__global__ void two(unimem_f32* x) {}";
  EXPECT_TRUE(compiler().compile({"one", source, nullptr}, 90, "cuda:0").portable);
  EXPECT_FALSE(compiler().compile({"two", source, nullptr}, 90, "cuda:0").portable);
}

TEST_F(CudaCompile, NewerArchitecturesGetTheNewestPtx) {
  auto const newest = nvrtc_.architectures.back();
  auto const kernel = compiler().compile(add_kernel(), newest + 100, "cuda:0");
  EXPECT_THAT(kernel.image, AllOf(HasSubstr(".version"), HasSubstr(".target sm_" + std::to_string(newest)),
                                  HasSubstr(".entry " + kernel.entry)));
}

TEST_F(CudaCompile, AnArchitectureOlderThanTheCompilerIsRefused) {
  try {
    static_cast<void>(compiler().compile(add_kernel(), 30, "cuda:0"));
    FAIL() << "it compiled";
  } catch (UnsupportedOperation const& error) {
    EXPECT_EQ(error.where, "cuda:0");
    EXPECT_THAT(error.reason, HasSubstr("and the device is sm_30"));
  }
}

TEST_F(CudaCompile, ProductAndSumRoundTwice) {
  auto const ptx_of = [&](char const* expression, char const* begin) {
    auto const text = std::string(begin) + "{ p_data[0] = " + expression + "; }";
    return compiler().compile({"f", text, nullptr}, nvrtc_.architectures.back() + 100, "cuda:0").image;
  };
  auto const* const portable = "UNIMEM_KERNEL f(UNIMEM_BUFFER(float, p))";
  EXPECT_THAT(ptx_of("p_data[1] * p_data[2] + p_data[3]", portable),
              AllOf(HasSubstr("mul.rn.f32"), HasSubstr("add.rn.f32"), Not(HasSubstr("fma"))));
  EXPECT_THAT(ptx_of("fma(p_data[1], p_data[2], p_data[3])", portable), HasSubstr("fma.rn.f32"));
  EXPECT_THAT(ptx_of("sqrt(p_data[1] / p_data[2])", portable),
              AllOf(HasSubstr("div.rn.f32"), HasSubstr("sqrt.rn.f32")));
  EXPECT_THAT(ptx_of("p_data[1] * p_data[2] + p_data[3]", "__global__ void f(float* p_data)"), HasSubstr("fma.rn.f32"))
      << "plain CUDA is compiled as other programs compile it";
}

TEST_F(CudaCompile, FastMathematicsIsAskedOfTheCompiler) {
  auto const instructions = [&](bool fast, std::string source) {
    source = (fast ? std::string(detail::fast_math_line) : std::string{}) + source;
    return compiler().compile({"divide", source, {}}, 1000, "cuda:0").image;  // PTX
  };
  for (std::string const kernel : {"UNIMEM_KERNEL divide(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, "
                                   "x)[UNIMEM_ITEM_X] /= 3 - UNIMEM_DATA(float, x)[0]; }",
                                   "__global__ void divide(float* x) { x[threadIdx.x] /= x[0]; }"}) {
    EXPECT_THAT(instructions(false, kernel), HasSubstr("div.rn.f32"));
    EXPECT_THAT(instructions(true, kernel), AllOf(Not(HasSubstr("div.rn.f32")), HasSubstr(".ftz.f32")));
  }
}

TEST_F(CudaCompile, ABuildErrorHasTheSourcesLines) {
  auto const error = refusal({"broken", "UNIMEM_KERNEL broken() {\n\n  frobnicate;\n}", nullptr});
  EXPECT_EQ(error.name, "broken");
  EXPECT_EQ(error.reason, "does not build on cuda:0 (NVRTC_ERROR_COMPILATION)");
  EXPECT_THAT(error.build_log, HasSubstr("broken(3): error: identifier \"frobnicate\" is undefined"));
  EXPECT_THAT(refusal({"broken", "__global__ void broken() {\n  frobnicate;\n}", nullptr}).build_log,
              HasSubstr("broken(2): error: identifier \"frobnicate\" is undefined"));
}

TEST_F(CudaCompile, AMissingEntryNamesTheKernelsThereAre) {
  auto const error = refusal({"absent", "UNIMEM_KERNEL one() {}\n__global__ void two() {}", nullptr});
  EXPECT_EQ(error.name, "absent");
  EXPECT_EQ(error.reason, "the source has no such entry; it defines one, two");
  EXPECT_THAT(error.build_log, IsEmpty());
  EXPECT_EQ(refusal({"absent", "UNIMEM_FUNCTION int f() { return 1; }", nullptr}).reason,
            "the source defines no kernel");
  EXPECT_THAT(refusal({"absent", "UNIMEM_KERNEL one() { oops; }", nullptr}).build_log,
              AllOf(HasSubstr("oops"), Not(HasSubstr("no member"))))
      << "what is wrong with the source, not with the name";
}

TEST_F(CudaCompile, AnImpossibleNameIsMissing) {
  for (auto const* const name :
       {"", "a b", "1", "\"", "one(", "one; }", "one\n#error", "one<", "::", "unimem_source::one"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(refusal({name, "UNIMEM_KERNEL one() {}", nullptr}).name, name);
    EXPECT_EQ(refusal({name, "__global__ void one() {}", nullptr}).name, name);
  }
}

TEST_F(CudaCompile, ANameThatAMacroMakesIsFound) {
  auto const* const source =
      "#define MAKE(T) UNIMEM_KERNEL fill_##T(UNIMEM_BUFFER(T, x)) { x_data[0] = 1; }\nMAKE(float)";
  EXPECT_EQ(compiler().compile({"fill_float", source, nullptr}, 90, "cuda:0").parameters.size(), 1U);
}

TEST_F(CudaCompile, ASourceThatCannotBeOneIsRefused) {
  EXPECT_EQ(refusal({"none", "", nullptr}).reason, "has no source form, which cuda:0 needs");
  EXPECT_EQ(refusal({"zero", std::string("UNIMEM_KERNEL zero\0() {}", 24), nullptr}).reason,
            "the source has a zero byte at 18");
  EXPECT_THAT(refusal({"open", "UNIMEM_KERNEL open() {", nullptr}).build_log, Not(IsEmpty()));
  EXPECT_THAT(refusal({"closed", "UNIMEM_KERNEL closed() {} }", nullptr}).build_log, Not(IsEmpty()));
  std::string many = "UNIMEM_KERNEL many(int a0";
  for (int i = 1; i < 65; ++i) many += ", int a" + std::to_string(i);
  EXPECT_THAT(refusal({"many", many + ") {}", nullptr}).build_log, HasSubstr("at most 64 parameters"));
}

TEST_F(CudaCompile, WithoutACompilerTheErrorNamesTheSearch) {
  setenv("UNIMEM_NVRTC_LIBRARY", "/nowhere/libnvrtc.so", 1);
  KernelCompiler const none{driver_version, KernelCache{}};
  try {
    static_cast<void>(none.compile(add_kernel(), 90, "cuda:0"));
    FAIL() << "it compiled";
  } catch (UnsupportedOperation const& error) {
    EXPECT_EQ(error.operation, "compiling kernels");
    EXPECT_THAT(error.reason, AllOf(HasSubstr("UNIMEM_NVRTC_LIBRARY"), HasSubstr("/nowhere/libnvrtc.so")));
  }
  unsetenv("UNIMEM_NVRTC_LIBRARY");
  EXPECT_THROW(static_cast<void>(none.compile({"none", "", nullptr}, 90, "cuda:0")), KernelError)
      << "no compiler is needed to see this";
}

TEST_F(CudaCompile, ALibraryThatIsNoCompilerIsRefused) {
  setenv("UNIMEM_NVRTC_LIBRARY", "libm.so.6", 1);
  EXPECT_EQ(load_nvrtc(driver_version).problem, "the NVRTC that was found has no nvrtcVersion");
  unsetenv("UNIMEM_NVRTC_LIBRARY");
}

TEST_F(CudaCompile, ACompilerFailureNamesTheCall) {
  auto broken = nvrtc_;
  broken.nvrtc.nvrtcCreateProgram = [](NvrtcProgram*, char const*, char const*, int, char const* const*,
                                       char const* const*) { return NvrtcResult{1}; };
  try {
    static_cast<void>(KernelCompiler(broken, driver_version, KernelCache{}).compile(add_kernel(), 90, "cuda:0"));
    FAIL() << "it compiled";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "nvrtcCreateProgram");
    EXPECT_EQ(error.code_name, "NVRTC_ERROR_OUT_OF_MEMORY");
  }
}

TEST_F(CudaCompile, WhatWasCompiledOnceIsNotCompiledAgain) {
  TemporaryFolder const folder;
  KernelCache const cache{folder.path()};
  auto const first = compiler(cache).compile(coordinates_kernel(), 90, "cuda:0");
  ASSERT_EQ(compilations, 1);
  EXPECT_EQ(compiler(cache).compile(coordinates_kernel(), 90, "cuda:1"), first);
  EXPECT_EQ(compilations, 1);
}

TEST_F(CudaCompile, WhatDiffersInAnythingIsCompiledAnew) {
  TemporaryFolder const folder;
  KernelCache const cache{folder.path()};
  auto const* const source = "UNIMEM_KERNEL a(UNIMEM_BUFFER(float, x)) {}\nUNIMEM_KERNEL b(UNIMEM_BUFFER(float, x)) {}";
  int expected = 0;
  auto const compile = [&](ProgramSource const& what, int architecture, int driver, int version) {
    auto nvrtc = nvrtc_;
    nvrtc.version = version;
    static_cast<void>(KernelCompiler(nvrtc, driver, cache).compile(what, architecture, "cuda:0"));
    return static_cast<int>(compilations);
  };
  EXPECT_EQ(compile({"a", source, nullptr}, 90, 12040, 12090), ++expected);
  EXPECT_EQ(compile({"b", source, nullptr}, 90, 12040, 12090), ++expected);
  EXPECT_EQ(compile({"a", std::string(source) + ' ', nullptr}, 90, 12040, 12090), ++expected);
  EXPECT_EQ(compile({"a", source, nullptr}, 80, 12040, 12090), ++expected);
  EXPECT_EQ(compile({"a", source, nullptr}, 90, 12050, 12090), ++expected);
  EXPECT_EQ(compile({"a", source, nullptr}, 90, 12040, 12080), ++expected);
  EXPECT_EQ(compile({"a", source, nullptr}, 90, 12040, 12090), expected);
}

TEST_F(CudaCompile, ADamagedEntryIsCompiledAnewAndReplaced) {
  TemporaryFolder const folder;
  KernelCache const cache{folder.path()};
  auto const first = compiler(cache).compile(add_kernel(), 90, "cuda:0");
  for (auto const& file : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::resize_file(file, file.file_size() - 1);
  }
  EXPECT_EQ(compiler(cache).compile(add_kernel(), 90, "cuda:0"), first);
  EXPECT_EQ(compilations, 2);
  EXPECT_EQ(compiler(cache).compile(add_kernel(), 90, "cuda:0"), first);
  EXPECT_EQ(compilations, 2);
}

TEST_F(CudaCompile, WhatDoesNotBuildIsNotKept) {
  TemporaryFolder const folder;
  KernelCache const cache{folder.path()};
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(static_cast<void>(compiler(cache).compile({"f", "UNIMEM_KERNEL f() { x; }", nullptr}, 90, "cuda:0")),
                 KernelError);
  }
  EXPECT_EQ(compilations, 2);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_F(CudaCompile, OneCompilerServesManyThreads) {
  TemporaryFolder const folder;
  auto const shared = KernelCache{folder.path()};
  KernelCompiler const compiler{nvrtc_, driver_version, shared};
  auto const expected = compiler.compile(add_kernel(), 90, "cuda:0");
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        auto source = add_kernel();
        source.source += std::string(static_cast<std::size_t>(t % 2 * i), ' ');
        wrong += compiler.compile(source, 90, "cuda:0") != expected;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace unimem
