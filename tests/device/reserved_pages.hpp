#pragma once

#include <unimem/device/detail/pages.hpp>
#include <unimem/device/memory.hpp>

#include <cstddef>
#include <map>

namespace unimem {

/// The page interface through RAII, so that a failing test leaves the device as it found it.
class Reserved {
 public:
  Reserved(PageSource& source, std::size_t bytes) : source_(source), range_(source.reserve(bytes)) {}
  Reserved(Reserved const&) = delete;
  Reserved& operator=(Reserved const&) = delete;
  ~Reserved() {
    for (auto const& [offset, bytes] : mapped_) source_.free_pages(source_.unmap(range_.part(offset, bytes)));
    source_.give_up(range_);
  }

  void map(std::size_t offset, Pages pages) {
    source_.map(range_.part(offset, pages.bytes), pages);
    mapped_.emplace(offset, pages.bytes);
  }

  /// Of exactly one earlier `map`.
  [[nodiscard]] Pages unmap(std::size_t offset, std::size_t bytes) {
    auto const pages = source_.unmap(range_.part(offset, bytes));
    mapped_.erase(offset);
    return pages;
  }

  /// A part that is unmapped behind this object's back must not be unmapped again.
  void forget() { mapped_.clear(); }

  [[nodiscard]] AddressRange range() const noexcept { return range_; }
  [[nodiscard]] DeviceMemory memory(std::size_t offset, std::size_t bytes) const noexcept {
    return {range_.base, offset, bytes};
  }

 private:
  PageSource& source_;
  AddressRange range_;
  std::map<std::size_t, std::size_t> mapped_;
};

}  // namespace unimem
