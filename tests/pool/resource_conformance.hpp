#pragma once

#include <unimem/core/error.hpp>
#include <unimem/pool/cuda_resource.hpp>

#include "pool/adaptor_fixture.hpp"
#include "pool/adaptors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>

// What adaptors that deal in bare addresses do besides; what all of them say where they do not serve.

namespace unimem {

class ResourceConformance : public AdaptorConformance {
 protected:
  [[nodiscard]] ResourceAdaptor& resource() const { return dynamic_cast<ResourceAdaptor&>(*adaptor); }

  /// Runs `mistake`, which `by` must report in these words and which must change nothing.
  void expect_refused(Adaptor const& by, std::function<void()> const& mistake, std::string const& words) {
    auto const before = by.statistics();
    auto const in_use = pool.statistics();
    ::testing::internal::CaptureStderr();
    mistake();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                ::testing::AllOf(::testing::HasSubstr(place()), ::testing::HasSubstr(words)));
    EXPECT_EQ(by.statistics().refused_deallocations, before.refused_deallocations + 1);
    EXPECT_EQ(by.statistics().live_allocations, before.live_allocations);
    EXPECT_EQ(by.statistics().live_bytes, before.live_bytes);
    EXPECT_EQ(pool.statistics().active_allocations, in_use.active_allocations);
    EXPECT_EQ(pool.statistics().active_bytes, in_use.active_bytes);
  }
};

TEST_P(ResourceConformance, ItEqualsItsHandles) {
  auto const alias = resource().alias();
  EXPECT_TRUE(resource().equals(resource()));
  EXPECT_TRUE(resource().equals(*alias));
  EXPECT_TRUE(alias->equals(resource()));
  auto const piece = filled(1000, 1);
  EXPECT_TRUE(holds(piece, 1));
  alias->give_back(piece);
  expect_in_use(0);
  EXPECT_EQ(alias->statistics().refused_deallocations, 0U);
}

TEST_P(ResourceConformance, ItDiffersFromOthersOverItsPool) {
  auto const another = GetParam().kind.make(pool);
  auto const& other = dynamic_cast<ResourceAdaptor const&>(*another);
  EXPECT_FALSE(resource().equals(other));
  EXPECT_FALSE(other.equals(resource()));
  auto const piece = filled(1000, 1);
  expect_refused(*another, [&] { another->give_back(piece); }, "it was not handed out here");
  EXPECT_TRUE(holds(piece, 1));
  expect_in_use(1);
  adaptor->give_back(piece);
}

TEST_P(ResourceConformance, ARightReturnWorksAfterAWrong) {
  auto const piece = filled(1000, 1);
  auto wrong = piece;
  wrong.bytes = 999;
  expect_refused(*adaptor, [&] { adaptor->give_back(wrong); }, "it was handed out with another size");
  wrong = piece;
  wrong.alignment = 16;
  expect_refused(*adaptor, [&] { adaptor->give_back(wrong); }, "it was handed out with another alignment");
  wrong = piece;
  wrong.address = static_cast<std::byte*>(wrong.address) + 8;
  expect_refused(*adaptor, [&] { adaptor->give_back(wrong); }, "it was not handed out here");
  EXPECT_TRUE(holds(piece, 1));
  adaptor->give_back(piece);
  expect_refused(*adaptor, [&] { adaptor->give_back(piece); }, "it was given back already");
  expect_in_use(0);
}

TEST_P(ResourceConformance, NoBytesHaveAnAddressOfTheirOwn) {
  auto const one = adaptor->take(0, 1), other = adaptor->take(0, 1);
  EXPECT_NE(one.address, nullptr);
  EXPECT_NE(one.address, other.address);
  EXPECT_EQ(adaptor->statistics().live_bytes, 0U);
  expect_in_use(2);
  adaptor->give_back(other);
  adaptor->give_back(one);
}

TEST_P(ResourceConformance, MemoryInUseGoesBackAtItsEnd) {
  auto brief = GetParam().kind.make(pool);
  static_cast<void>(brief->take(1000, 8));
  static_cast<void>(brief->take(500, 8));
  ::testing::internal::CaptureStderr();
  brief.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr(place() + " ends with 2 allocations of 1500 bytes in use"));
  expect_in_use(0);
}

/// A kind of adaptor at a home that it cannot serve.
class AdaptorRefusals : public AtAdaptorHome, public ::testing::WithParamInterface<AdaptorCase> {
 protected:
  AdaptorRefusals()
      : AtAdaptorHome(GetParam().home, GetParam().kind.upstream == nullptr ? nullptr : GetParam().kind.upstream()) {}
};

TEST_P(AdaptorRefusals, AreUnsupportedOperationsThatNameThePlace) {
  for (int time = 0; time < 2; ++time) {
    try {
      auto const adaptor = GetParam().kind.make(pool);
      auto const piece = adaptor->take(1000, 8);
      ADD_FAILURE() << "was served";
      adaptor->give_back(piece);
    } catch (UnsupportedOperation const& error) {
      EXPECT_THAT(error.where, ::testing::HasSubstr(place()));
      EXPECT_FALSE(error.operation.empty());
      EXPECT_FALSE(error.reason.empty());
    }
    EXPECT_EQ(pool.statistics().active_allocations, 0U);
    EXPECT_EQ(pool.statistics().active_bytes, 0U);
    pool.validate();
  }
}

// As CCCL spells its tags.
namespace cccl {
struct host_accessible {};    // NOLINT(readability-identifier-naming)
struct device_accessible {};  // NOLINT(readability-identifier-naming)
}  // namespace cccl

class ResourceClaims : public AtAdaptorHome, public ::testing::WithParamInterface<AdaptorHome> {
 protected:
  ResourceClaims() : AtAdaptorHome(GetParam(), nullptr) {}

  template <class... Properties>
  void expect(bool accepted) {
    try {
      CudaResource<Properties...> const resource{pool};
      EXPECT_TRUE(accepted);
      EXPECT_EQ(resource.statistics().live_allocations, 0U);
    } catch (UnsupportedOperation const& error) {
      EXPECT_FALSE(accepted) << error.what();
      EXPECT_EQ(error.operation, "CudaResource");
      EXPECT_EQ(error.where, place());
    }
  }
};

TEST_P(ResourceClaims, AreRefusedWhereTheyAreNotTrue) {
  bool const of_host = GetParam().reach >= Reach::host, of_cuda = GetParam().of_cuda;
  expect<>(true);
  expect<cccl::host_accessible>(of_host);
  expect<cccl::device_accessible>(of_cuda);
  expect<cccl::host_accessible, cccl::device_accessible>(of_host && of_cuda);
}

inline std::string adaptor_home_name(::testing::TestParamInfo<AdaptorHome> const& info) {
  return info.param.pool.name;
}

}  // namespace unimem
