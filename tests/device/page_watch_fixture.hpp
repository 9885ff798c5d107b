#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "device/page_watch.hpp"

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <new>
#include <ostream>
#include <span>

namespace unimem::detail {

/// The words of tests about PageWatch: memory counted in pages.

inline std::size_t const page = PageWatch::page_bytes();
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Anonymous memory that nobody has touched, aligned to huge pages. What it is made of is `advice` (of madvise).
class AnonymousMemory {
 public:
  explicit AnonymousMemory(std::size_t bytes, int advice = MADV_NOHUGEPAGE) : mapped_bytes_(bytes + huge_page) {
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    auto const skew = reinterpret_cast<std::uintptr_t>(mapped_) % huge_page;
    bytes_ = {static_cast<std::byte*>(mapped_) + (skew == 0 ? 0 : huge_page - skew), bytes};
    madvise(bytes_.data(), bytes, advice);
  }
  AnonymousMemory(AnonymousMemory const&) = delete;
  AnonymousMemory& operator=(AnonymousMemory const&) = delete;
  ~AnonymousMemory() { munmap(mapped_, mapped_bytes_); }

  [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] ByteRange all() const noexcept { return {0, bytes_.size()}; }
  [[nodiscard]] std::byte& operator[](std::size_t offset) const noexcept { return bytes_[offset]; }

  void touch(std::byte value = std::byte{1}) const { std::memset(data(), std::to_integer<int>(value), size()); }

  /// Whether every byte of `range` is `value`.
  [[nodiscard]] bool holds(ByteRange range, std::byte value) const {
    for (auto offset = range.begin; offset < range.end; ++offset) {
      if (bytes_[offset] != value) return false;
    }
    return true;
  }

 private:
  void* mapped_;
  std::size_t mapped_bytes_;
  std::span<std::byte> bytes_;
};

/// The bytes of pages `[begin, end)`.
inline ByteRange pages(std::size_t begin, std::size_t end) {
  return {begin * page, end * page};
}

/// The bytes of the pages named.
inline ByteRanges set_of_pages(std::initializer_list<std::size_t> numbers) {
  ByteRanges set;
  for (auto const number : numbers) set.add(pages(number, number + 1));
  return set;
}

/// Skipped with the reason where this system cannot track writes.
class PageWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto const reason = PageWatch::reason_unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

/// Prints as page numbers, in messages of tests that fail.
inline void PrintTo(ByteRange range, std::ostream* out) {
  *out << "pages [" << static_cast<double>(range.begin) / static_cast<double>(page) << ", "
       << static_cast<double>(range.end) / static_cast<double>(page) << ")";
}

}  // namespace unimem::detail

namespace unimem {

inline void PrintTo(ByteRanges const& set, std::ostream* out) {
  for (auto const range : set.ranges()) {
    detail::PrintTo(range, out);
    *out << ' ';
  }
}

}  // namespace unimem
