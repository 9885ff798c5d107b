#pragma once

#include <unimem/device/device.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/adaptors.hpp"
#include "pool/pool_home.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace unimem {

/// A home, a pool there as users make it, of whatever backing comes of that, and what its pieces hold.
class AtAdaptorHome : public ::testing::Test {
 protected:
  AtAdaptorHome(AdaptorHome const& of, std::shared_ptr<Upstream> const& behind)
      : reach(of.reach), most(of.pool.most), location(of.pool.location), upstream(behind), home(found(of.pool)) {}

  void SetUp() override {
    if (!home.missing.empty()) GTEST_SKIP() << home.missing;
  }
  void TearDown() override {
    pool.validate();
    EXPECT_EQ(pool.statistics().active_allocations, 0U) << "everything has been given back";
    pool.trim();
    EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
    if (auto const* const driver = dynamic_cast<DriverUpstream*>(upstream.get())) {
      EXPECT_EQ(driver->live_bytes(), 0U);
    }
  }

  [[nodiscard]] PoolOptions options(std::size_t max_bytes = SIZE_MAX) const {
    PoolOptions options;
    options.max_bytes = max_bytes;
    options.upstream = upstream;
    return options;
  }
  [[nodiscard]] std::string place() const { return std::string(device.id()) + " " + std::string(to_string(location)); }

  /// Has a piece hold the pattern of `seed`, by whoever reaches it, and whether it still does.
  void fill(Piece const& piece, std::uint64_t seed, Queue& queue) const {
    auto const words = pattern(piece.bytes / 8 + 1, seed);
    if (host_writes(piece)) {
      std::memcpy(piece.address, words.data(), piece.bytes);
    } else {
      queue.upload(piece.memory, words.data(), piece.bytes).wait();
    }
  }
  void fill(Piece const& piece, std::uint64_t seed) const { fill(piece, seed, device.default_queue()); }
  [[nodiscard]] bool holds(Piece const& piece, std::uint64_t seed, Queue& queue) const {
    auto const words = pattern(piece.bytes / 8 + 1, seed);
    std::vector<std::uint64_t> found(words.size());
    if (host_writes(piece)) {
      std::memcpy(found.data(), piece.address, piece.bytes);
    } else {
      queue.download(found.data(), piece.memory, piece.bytes).wait();
    }
    return std::memcmp(found.data(), words.data(), piece.bytes) == 0;
  }
  [[nodiscard]] bool holds(Piece const& piece, std::uint64_t seed) const {
    return holds(piece, seed, device.default_queue());
  }

  Reach const reach;
  std::size_t const most;
  Location const location;
  std::shared_ptr<Upstream> const upstream;
  FoundHome const home;
  Device& device = home.place;
  MemoryPool pool{device, location, options()};

 private:
  /// What has blocks is written by the device, what has addresses by the host if it may.
  [[nodiscard]] bool host_writes(Piece const& piece) const { return piece.block == nullptr && reach >= Reach::host; }
};

class AdaptorConformance : public AtAdaptorHome, public ::testing::WithParamInterface<AdaptorCase> {
 protected:
  AdaptorConformance() : AtAdaptorHome(GetParam().home, behind()) {}

  void SetUp() override {
    AtAdaptorHome::SetUp();
    if (!IsSkipped()) adaptor = GetParam().kind.make(pool);
  }
  void TearDown() override {
    if (adaptor != nullptr) {
      adaptor->validate();
      EXPECT_EQ(adaptor->statistics().live_allocations, 0U);
      EXPECT_EQ(adaptor->statistics().live_bytes, 0U);
      adaptor.reset();
    }
    AtAdaptorHome::TearDown();
  }

  /// A piece that holds the pattern of `seed`.
  [[nodiscard]] Piece filled(std::size_t bytes, std::uint64_t seed) const {
    auto piece = adaptor->take(bytes, 8);
    fill(piece, seed);
    return piece;
  }
  /// A few, up to a sixteenth of what there is.
  [[nodiscard]] std::vector<std::size_t> sizes() const { return {1, 100, 257, 4 * KiB + 1, most / 64, most / 16}; }
  /// Of these sizes, piece i holding the pattern of i.
  [[nodiscard]] std::vector<Piece> several() const {
    std::vector<Piece> pieces;
    for (auto const bytes : sizes()) pieces.push_back(filled(bytes, pieces.size()));
    return pieces;
  }
  void give_back(std::vector<Piece> const& pieces) const {
    for (auto const& piece : pieces) adaptor->give_back(piece);
  }
  void expect_in_use(std::size_t pieces) const {
    EXPECT_EQ(adaptor->statistics().live_allocations, pieces);
    EXPECT_EQ(pool.statistics().active_allocations, pieces);
    EXPECT_EQ(pool.statistics().active_bytes == 0, pieces == 0);
  }

  std::unique_ptr<Adaptor> adaptor;

 private:
  [[nodiscard]] static std::shared_ptr<Upstream> behind() {
    return GetParam().kind.upstream == nullptr ? nullptr : GetParam().kind.upstream();
  }
};

}  // namespace unimem
