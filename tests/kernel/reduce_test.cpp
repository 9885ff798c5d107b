#include "kernel/reduce_conformance.hpp"

namespace unimem {
namespace {

static_assert(detail::Reducible<UnifiedBuffer<bool>> && detail::Reducible<BufferSlice<double>>);
static_assert(!detail::Reducible<UnifiedBuffer<long double>>, "no kernel language has it");
static_assert(!detail::Reducible<UnifiedBuffer<std::byte>>, "it is no number");
static_assert(detail::TakesReduction<UnifiedBuffer<std::int64_t>, std::int8_t, Sum>);
static_assert(!detail::TakesReduction<UnifiedBuffer<float>, float, Sum>, "sums are made in double precision");

INSTANTIATE_TEST_SUITE_P(Host, Reductions, ::testing::Values("cpu", "sim"));

}  // namespace
}  // namespace unimem
