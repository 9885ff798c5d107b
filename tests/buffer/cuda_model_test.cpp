#include <unimem/core/detail/environment.hpp>
#include <unimem/device/discovery.hpp>

#include "buffer/model.hpp"
#include "device/standin_watch.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>

// The shadow model with two GPUs among its devices, one of them smaller than what is used on it, and a simulated one
// that no GPU reaches. Hardware is asked for no faults.

namespace unimem::testing {
namespace {

using detail::cuda::Result;

/// Operations per seed, unless UNIMEM_TEST_OPERATIONS asks for another number.
std::size_t operations() {
  auto const wanted = environment("UNIMEM_TEST_OPERATIONS");
  return wanted ? std::stoull(*wanted) : 400;
}

void refuse(std::size_t way, std::size_t nth) {
  auto const fail = [nth](char const* function, Result code) {
    standin_control().fail(function, nth, code, standin::FaultKind::once);
  };
  switch (way) {
    case 0:
      return fail("cuMemAlloc", Result::out_of_memory);
    case 1:
      return fail("cuMemcpyHtoDAsync", Result::invalid_value);
    case 2:
      return fail("cuMemcpyDtoHAsync", Result::invalid_value);
    case 3:
      return fail("cuLaunchKernel", Result::launch_out_of_resources);
    case 4:
      return fail("cuEventRecord", Result::out_of_memory);
    case 5:
      return;
    case 6:
      return fail("cuStreamWaitEvent", Result::invalid_value);
    default:
      return fail(nullptr, Result::out_of_memory);
  }
}

/// All is well again; what was wrong with the calls so far is told first.
void behave() {
  if (on_hardware) return;
  EXPECT_THAT(standin::violations(standin_control()), ::testing::IsEmpty());
  standin_control().reset();
}

class CudaModelRun : public ::testing::TestWithParam<unsigned> {};

TEST_P(CudaModelRun, EveryByteIsWhatSuccessfulWorkLeft) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  auto const began = std::chrono::steady_clock::now();
  Model model({.seed = GetParam(),
               .faults = !on_hardware,
               .devices = {&device(first_gpu("memory=6KiB")), &device(second_gpu()), nullptr},
               .arm = refuse,
               .disarm = behave});
  try {
    for (std::size_t operation = 0; operation < operations(); ++operation) model.step();
    model.finish();
  } catch (Discrepancy const& difference) {
    FAIL() << difference.what();
  }
  std::chrono::duration<double> const took = std::chrono::steady_clock::now() - began;
  std::cout << "seed " << GetParam() << ": " << static_cast<double>(operations()) / took.count()
            << " operations per second\n";
  for (auto const& [what, times] : model.tally()) RecordProperty(what, std::to_string(times));
  if (operations() < 4'000) return;
  for (std::string const what : {"launch", "copy", "resize", "map", "evicted", "failed later", "threw"}) {
    if (on_hardware && (what == "failed later" || what == "threw")) continue;
    auto const found = model.tally().find(what);
    EXPECT_TRUE(found != model.tally().end() && found->second > 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CudaModelRun, ::testing::Values(1U, 2U, 3U, 2026U));

}  // namespace
}  // namespace unimem::testing
