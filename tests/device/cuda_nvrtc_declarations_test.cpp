#include <nvrtc.h>

#include "device/cuda/nvrtc.hpp"

#include <gtest/gtest.h>

#include <type_traits>

// Our own declarations of CUDA's run-time compiler against the real ones.

namespace ours = unimem::detail::cuda;

namespace {

/// Whether two types travel alike in a call: of one size, and both addresses or both numbers.
template <class Ours, class Theirs>
constexpr bool travel_alike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    (std::is_integral_v<Ours> || std::is_enum_v<Ours>) == (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);

template <class Ours, class Theirs>
struct SameCall : std::false_type {};

template <class OurResult, class... Ours, class TheirResult, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<travel_alike<OurResult, TheirResult> && (travel_alike<Ours, Theirs> && ...)> {};

#define UNIMEM_COMPARE(function, ...) \
  static_assert(SameCall<decltype(ours::Nvrtc::function), decltype(&::function)>::value, #function);
UNIMEM_NVRTC_FUNCTIONS(UNIMEM_COMPARE)
UNIMEM_COMPARE(nvrtcGetErrorString)
#undef UNIMEM_COMPARE

TEST(NvrtcDeclarations, AreThoseOfTheRealHeader) {
  EXPECT_EQ(static_cast<int>(ours::NvrtcResult::success), NVRTC_SUCCESS);
  EXPECT_EQ(static_cast<int>(ours::NvrtcResult::compilation), NVRTC_ERROR_COMPILATION);
}

}  // namespace
