#pragma once

#include <unimem/device/device.hpp>
#include <unimem/pool/cuda_resource.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/pool_resource.hpp>
#include <unimem/pool/upstream.hpp>

#include "pool/pool_home.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// What stands between a pool and its users, or behind it, each by one interface: what adaptor_conformance.hpp asks of
// all of them.

namespace unimem {

/// Who reaches the memory of a place. Each includes those before it.
enum class Reach : std::uint8_t {
  objects,    ///< the device alone, by the driver's objects
  addresses,  ///< the device alone, by its addresses
  host,       ///< the host as well, by the same addresses
  ordinary,   ///< everybody, as any memory of the host
};

/// A place that pools serve, and what is true of its memory.
struct AdaptorHome {
  PoolHome pool;
  Reach reach;
  bool of_cuda = false;  ///< CUDA's devices reach it
};

/// What an adaptor has handed out.
struct Piece {
  DeviceMemory memory{};    ///< as the device's queues take it
  void* address = nullptr;  ///< null where it has none
  std::size_t bytes = 0;
  std::size_t alignment = 1;
  std::shared_ptr<Allocation> block{};  ///< of adaptors that hand out blocks
};

/// A way to memory of a pool. Thread-safe.
class Adaptor {
 public:
  Adaptor() = default;
  Adaptor(Adaptor const&) = delete;
  Adaptor& operator=(Adaptor const&) = delete;
  virtual ~Adaptor() = default;

  [[nodiscard]] virtual Piece take(std::size_t bytes, std::size_t alignment) = 0;
  virtual void give_back(Piece const& piece) = 0;

  /// By its own books: what it has handed out, and what it was given back by mistake.
  [[nodiscard]] virtual AddressStatistics statistics() const = 0;
  virtual void validate() const {}
};

/// One that hands out addresses, and knows its like.
class ResourceAdaptor : public Adaptor {
 public:
  [[nodiscard]] virtual bool equals(ResourceAdaptor const& other) const = 0;
  /// Another handle of the same resource.
  [[nodiscard]] virtual std::unique_ptr<ResourceAdaptor> alias() const = 0;

 protected:
  [[nodiscard]] static Piece piece_at(void* address, std::size_t bytes, std::size_t alignment) {
    return {{reinterpret_cast<std::uintptr_t>(address), 0, bytes}, address, bytes, alignment};
  }
};

/// A pool as the standard library sees it.
class PmrAdaptor final : public ResourceAdaptor {
 public:
  explicit PmrAdaptor(MemoryPool& pool) : resource_(std::make_shared<PoolResource>(pool, Name("conformance"))) {}
  explicit PmrAdaptor(std::shared_ptr<PoolResource> resource) : resource_(std::move(resource)) {}

  [[nodiscard]] Piece take(std::size_t bytes, std::size_t alignment) override {
    return piece_at(standard().allocate(bytes, alignment), bytes, alignment);
  }
  void give_back(Piece const& piece) override { standard().deallocate(piece.address, piece.bytes, piece.alignment); }
  [[nodiscard]] AddressStatistics statistics() const override { return resource_->statistics(); }
  void validate() const override { resource_->validate(); }
  [[nodiscard]] bool equals(ResourceAdaptor const& other) const override {
    return standard() == dynamic_cast<PmrAdaptor const&>(other).standard();
  }
  [[nodiscard]] std::unique_ptr<ResourceAdaptor> alias() const override {
    return std::make_unique<PmrAdaptor>(resource_);
  }

 private:
  [[nodiscard]] std::pmr::memory_resource& standard() const { return *resource_; }

  std::shared_ptr<PoolResource> resource_;
};

/// A pool as CUDA's C++ libraries see it, without streams and claiming no property: on every device that has addresses.
class CudaResourceAdaptor final : public ResourceAdaptor {
 public:
  explicit CudaResourceAdaptor(MemoryPool& pool) : resource_(pool, Name("conformance")) {}
  explicit CudaResourceAdaptor(CudaResource<> resource) : resource_(std::move(resource)) {}

  [[nodiscard]] Piece take(std::size_t bytes, std::size_t alignment) override {
    return piece_at(resource_.allocate_sync(bytes, alignment), bytes, alignment);
  }
  void give_back(Piece const& piece) override {
    resource_.deallocate_sync(piece.address, piece.bytes, piece.alignment);
  }
  [[nodiscard]] AddressStatistics statistics() const override { return resource_.statistics(); }
  [[nodiscard]] bool equals(ResourceAdaptor const& other) const override {
    return resource_ == dynamic_cast<CudaResourceAdaptor const&>(other).resource_;
  }
  [[nodiscard]] std::unique_ptr<ResourceAdaptor> alias() const override {
    return std::make_unique<CudaResourceAdaptor>(resource_);
  }

 private:
  CudaResource<> resource_;
};

/// The pool itself: what an upstream, behind it, is asked through.
class BlockAdaptor final : public Adaptor {
 public:
  explicit BlockAdaptor(MemoryPool& pool) : pool_(pool) {}

  [[nodiscard]] Piece take(std::size_t bytes, std::size_t alignment) override {
    auto const block =
        std::make_shared<Allocation>(pool_.acquire(bytes, {.alignment = alignment, .name = Name("conformance")}));
    ++live_;
    live_bytes_ += bytes;
    return {block->memory(), block->data(), bytes, alignment, block};
  }
  void give_back(Piece const& piece) override {
    piece.block->release();
    --live_;
    live_bytes_ -= piece.bytes;
  }
  [[nodiscard]] AddressStatistics statistics() const override { return {live_, live_bytes_, 0}; }

 private:
  MemoryPool& pool_;
  std::atomic<std::size_t> live_{0}, live_bytes_{0};
};

/// An upstream of a user's own, which has from the driver what it gives and keeps books: what comes back must be what
/// was given, once. Thread-safe.
class DriverUpstream final : public Upstream {
 public:
  ~DriverUpstream() override { EXPECT_EQ(live_bytes(), 0U) << "the pool has kept memory of its upstream"; }

  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override {
    auto const memory = device.allocate(bytes, location);
    std::lock_guard const lock{mutex_};
    live_.emplace(memory.object, memory);
    return memory;
  }
  void release(DeviceMemory memory, Location location, Device& device) noexcept override {
    {
      std::lock_guard const lock{mutex_};
      auto const found = live_.find(memory.object);
      if (found == live_.end() || !(found->second == memory)) {
        ADD_FAILURE() << "gave back what the upstream has not given";
        return;
      }
      live_.erase(found);
    }
    device.release(memory, location);
  }
  [[nodiscard]] std::size_t live_bytes() const {
    std::lock_guard const lock{mutex_};
    std::size_t bytes = 0;
    for (auto const& [object, memory] : live_) bytes += memory.bytes;
    return bytes;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, DeviceMemory> live_;
};

/// One kind of adaptor, and how much its memory must be reached for it to serve.
struct AdaptorKind {
  char const* name;
  Reach least;
  bool by_address;  ///< it is a ResourceAdaptor
  std::unique_ptr<Adaptor> (*make)(MemoryPool& pool);
  std::shared_ptr<Upstream> (*upstream)() = nullptr;  ///< of its pool; null: the memory is the device's
};

template <class Kind>
std::unique_ptr<Adaptor> make_adaptor(MemoryPool& pool) {
  return std::make_unique<Kind>(pool);
}

inline std::vector<AdaptorKind> adaptor_kinds() {
  auto* const driver = +[]() -> std::shared_ptr<Upstream> { return std::make_shared<DriverUpstream>(); };
  auto* const heap = +[]() -> std::shared_ptr<Upstream> {
    return std::make_shared<ResourceUpstream>(*std::pmr::new_delete_resource());
  };
  return {
      {"blocks", Reach::objects, false, make_adaptor<BlockAdaptor>},
      {"pmr", Reach::host, true, make_adaptor<PmrAdaptor>},
      {"cuda_resource", Reach::addresses, true, make_adaptor<CudaResourceAdaptor>},
      {"upstream", Reach::objects, false, make_adaptor<BlockAdaptor>, driver},
      {"pmr_over_upstream", Reach::host, true, make_adaptor<PmrAdaptor>, driver},
      {"resource_upstream", Reach::ordinary, false, make_adaptor<BlockAdaptor>, heap},
  };
}

/// An adaptor at a place.
struct AdaptorCase {
  AdaptorHome home;
  AdaptorKind kind;

  [[nodiscard]] bool serves() const noexcept { return home.reach >= kind.least; }
};

/// The cases of some homes, for INSTANTIATE_TEST_SUITE_P: those that serve, those of them by address, those that do
/// not.
inline std::vector<AdaptorCase> adaptor_cases(std::vector<AdaptorHome> const& homes,
                                              bool (*wanted)(AdaptorCase const& one)) {
  std::vector<AdaptorCase> cases;
  for (auto const& home : homes) {
    for (auto const& kind : adaptor_kinds()) {
      if (wanted({home, kind})) cases.push_back({home, kind});
    }
  }
  return cases;
}
inline std::vector<AdaptorCase> serving_adaptors(std::vector<AdaptorHome> const& homes) {
  return adaptor_cases(homes, [](AdaptorCase const& one) { return one.serves(); });
}
inline std::vector<AdaptorCase> serving_resources(std::vector<AdaptorHome> const& homes) {
  return adaptor_cases(homes, [](AdaptorCase const& one) { return one.serves() && one.kind.by_address; });
}
inline std::vector<AdaptorCase> refused_adaptors(std::vector<AdaptorHome> const& homes) {
  return adaptor_cases(homes, [](AdaptorCase const& one) { return !one.serves(); });
}
inline std::string adaptor_case_name(::testing::TestParamInfo<AdaptorCase> const& info) {
  return std::string(info.param.home.pool.name) + "_" + info.param.kind.name;
}

}  // namespace unimem
