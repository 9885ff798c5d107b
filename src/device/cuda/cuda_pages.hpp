#pragma once

#include <unimem/device/detail/pages.hpp>

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"
#include "device/host_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace unimem::detail::cuda {

/// Pages of a GPU, by the driver's virtual memory management.
///
/// The driver maps its allocations whole and never in part, and a pool that moves memory between ranges cuts it
/// anywhere: so every page is an allocation of its own. Growing by many pages costs two calls a page and one for access
/// to all.
///
/// Thread-safe.
class CudaPages final : public PageSource {
 public:
  /// Pages that this GPU and those that can reach it may access. The context is current. Throws DeviceError.
  CudaPages(ContextRef const& gpu, Health& health, Device device, PageOwner& owner);

  [[nodiscard]] std::size_t page_bytes() const noexcept override { return page_bytes_; }
  [[nodiscard]] AddressRange reserve(std::size_t bytes) override;
  void give_up(AddressRange range) noexcept override;
  [[nodiscard]] Pages create_pages(std::size_t bytes) override;
  void free_pages(Pages pages) noexcept override;
  void map(AddressRange range, Pages pages) override;
  [[nodiscard]] Pages unmap(AddressRange range) override;

 private:
  /// Pages that are mapped nowhere; its address is their handle.
  using Parked = std::vector<AllocationHandle>;

  void check_size(std::size_t bytes) const;
  void check_range(AddressRange range) const;
  /// How many pages are mapped in a range.
  [[nodiscard]] std::size_t present(AddressRange range) const;
  void release(Parked const& pages) noexcept;
  void complain(char const* call, char const* problem) const noexcept;

  ContextRef const& gpu_;
  Health& health_;
  PageOwner& owner_;
  AllocationProperties properties_;
  std::vector<AccessDescription> access_;
  std::size_t page_bytes_ = 0;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> reservations_;        ///< address to bytes
  std::map<std::uintptr_t, AllocationHandle> mapped_;         ///< by address, one for each page
  std::map<std::uintptr_t, std::unique_ptr<Parked>> parked_;  ///< handles that are out
};

}  // namespace unimem::detail::cuda
