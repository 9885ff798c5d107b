#include "device/host_pinning.hpp"

#include "core/fork.hpp"

#include <unimem/core/size.hpp>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace unimem::detail {
namespace {

std::string locking_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_size(limit.rlim_cur);
}

}  // namespace

HostPinning& HostPinning::instance() {
  static constinit PerProcess<HostPinning> pinning;
  return pinning.get();
}

void HostPinning::add(PinningDriver& driver) {
  std::lock_guard const lock{mutex_};
  if (driver_ != nullptr) return;
  driver_ = &driver;
  // What a driver refuses now stays locked by the system, and is as good as before.
  for (auto& [address, pinned] : pinned_) pinned.by_driver = driver.pin(address, pinned.bytes).pinned;
}

std::string HostPinning::pin(void* address, std::size_t bytes) {
  std::lock_guard const lock{mutex_};
  auto const entry = pinned_.insert_or_assign(address, Pinned{.bytes = bytes}).first;
  auto& pinned = entry->second;
  std::string refusal;
  if (driver_ != nullptr) {
    auto outcome = driver_->pin(address, bytes);
    pinned.by_driver = outcome.pinned;
    refusal = std::move(outcome.refusal);
  }
  if (refusal.empty() && !pinned.by_driver) {
    refusal = HostPinning::lock(address, bytes);
    pinned.by_system = refusal.empty();
  }
  if (!refusal.empty()) pinned_.erase(entry);
  return refusal;
}

void HostPinning::unpin(void* address) noexcept {
  std::lock_guard const lock{mutex_};
  auto const found = pinned_.find(address);
  if (found == pinned_.end()) return;
  auto const pinned = found->second;
  pinned_.erase(found);
  if (pinned.by_driver) driver_->unpin(address);
  if (pinned.by_system) munlock(address, pinned.bytes);
}

std::string HostPinning::lock(void* address, std::size_t bytes) {
  if (mlock(address, bytes) == 0) return {};
  auto const error = errno;
  return fmt::format("mlock: {}; the limit of locked memory (RLIMIT_MEMLOCK) is {}", std::strerror(error),
                     locking_limit());
}

}  // namespace unimem::detail
