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
/// The driver maps its allocations whole and never in part, and each costs two calls: much memory at once is made of
/// allocations larger than a page, its pieces, little of one for each page.
///
/// Other GPUs get access when they are first said to need it, and not with every page: a refusal is theirs alone.
///
/// Thread-safe.
class CudaPages final : public PageSource {
 public:
  /// Pages that this GPU may access. The context is current. Throws DeviceError.
  CudaPages(ContextRef const& gpu, Health& health, Device device, PageOwner& owner);

  [[nodiscard]] std::size_t page_bytes() const noexcept override { return page_bytes_; }
  [[nodiscard]] std::size_t piece_bytes(std::size_t bytes) const noexcept override;
  [[nodiscard]] AddressRange reserve(std::size_t bytes) override;
  void give_up(AddressRange range) noexcept override;
  [[nodiscard]] Pages create_pages(std::size_t bytes) override;
  void free_pages(Pages pages) noexcept override;
  void map(AddressRange range, Pages pages) override;
  [[nodiscard]] Pages unmap(AddressRange range) override;

  /// Lets another GPU reach what is mapped, now and later; where that is refused, it goes without, and the log says so.
  void admit(Device peer);

 private:
  /// One allocation of the driver's.
  struct Piece {
    AllocationHandle handle = 0;
    std::size_t bytes = 0;
  };
  using Mapped = std::map<std::uintptr_t, Piece>;
  /// Pages that are mapped nowhere; its address is their handle.
  using Parked = std::vector<Piece>;

  [[nodiscard]] static std::uintptr_t end_of(Mapped::value_type const& piece) noexcept {
    return piece.first + piece.second.bytes;
  }
  [[nodiscard]] static std::size_t bytes_of(Parked const& pieces) noexcept;

  void check_size(std::size_t bytes) const;
  void check_range(AddressRange range) const;
  /// How many bytes are mapped in a range.
  [[nodiscard]] std::size_t present(AddressRange range) const;
  /// Gives a GPU access to what is mapped there.
  [[nodiscard]] Result let(Device device, AddressRange range) const noexcept;
  [[nodiscard]] bool let_peer(Device peer, AddressRange range) const noexcept;
  void release(Parked const& pages) noexcept;
  void complain(char const* call, char const* problem) const noexcept;

  ContextRef const& gpu_;
  Health& health_;
  PageOwner& owner_;
  AllocationProperties properties_;
  std::size_t page_bytes_ = 0;
  mutable std::mutex mutex_;
  std::vector<Device> peers_;                                 ///< who else may access all that is mapped
  std::map<std::uintptr_t, std::size_t> reservations_;        ///< address to bytes
  Mapped mapped_;                                             ///< by address
  std::map<std::uintptr_t, std::unique_ptr<Parked>> parked_;  ///< handles that are out
};

}  // namespace unimem::detail::cuda
