#include "pool/object_source.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>

namespace unimem::detail {
namespace {

DeviceError failure_of_upstream(std::string what) {
  return {"upstream", "Upstream::allocate", 0, std::move(what)};
}

}  // namespace

DeviceMemory ObjectSource::take(std::size_t bytes) const {
  if (share_ == nullptr) return take_unshared(bytes);
  if (!share_->take(bytes)) share_->refuse(fmt::format("{} {}", device_.id(), to_string(location_)), bytes);
  try {
    return take_unshared(bytes);
  } catch (...) {
    share_->give_back(bytes);
    throw;
  }
}

void ObjectSource::give(DeviceMemory memory) const noexcept {
  give_unshared(memory);
  if (share_ != nullptr) share_->give_back(memory.bytes);
}

DeviceMemory ObjectSource::take_unshared(std::size_t bytes) const {
  if (upstream_ == nullptr) {
    return undumped_ ? device_.allocate_undumped(bytes, location_) : device_.allocate(bytes, location_);
  }
  auto const memory = ask_upstream(bytes);
  if (memory.object == 0) {
    throw OutOfMemory({.where = fmt::format("{} {}", device_.id(), to_string(location_)),
                       .requested = bytes,
                       .holders = {},
                       .reason = "the upstream gave no memory"});
  }
  try {
    check(memory, bytes);
  } catch (...) {
    give_unshared(memory);
    throw;
  }
  return memory;
}

void ObjectSource::give_unshared(DeviceMemory memory) const noexcept {
  if (upstream_ == nullptr && undumped_) {
    device_.release_undumped(memory, location_);
  } else if (upstream_ == nullptr) {
    device_.release(memory, location_);
  } else {
    upstream_->release(memory, location_, device_);
  }
}

DeviceMemory ObjectSource::ask_upstream(std::size_t bytes) const {
  try {
    return upstream_->allocate(bytes, location_, device_);
  } catch (std::bad_alloc const&) {
    throw;
  } catch (Error const&) {
    throw;
  } catch (std::exception const& error) {
    std::throw_with_nested(failure_of_upstream(error.what()));
  } catch (...) {
    std::throw_with_nested(failure_of_upstream("an exception of a type that says nothing"));
  }
}

void ObjectSource::check(DeviceMemory memory, std::size_t bytes) const {
  if (memory.bytes != bytes) {
    throw failure_of_upstream(fmt::format("memory of {} bytes where {} were asked for", memory.bytes, bytes));
  }
  auto const alignment = device_.info().alignment;
  auto const address = reinterpret_cast<std::uintptr_t>(device_.address(memory));
  auto const begin = address != 0 ? address : memory.offset;
  if (begin % alignment != 0) {
    throw failure_of_upstream(fmt::format("memory at {:#x}, which is not aligned to {} bytes", begin, alignment));
  }
}

}  // namespace unimem::detail
