#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/detail/pages.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <vector>

namespace unimem {

/// Pages without memory, whose source keeps books: every page has a number, so that which page lies behind an address
/// is known exactly. What must not happen to a driver fails the test. Used by one thread.
class ScriptedPages final : public PageSource {
 public:
  /// Numbers of pages; a page that is created gets a new one.
  using Numbers = std::vector<std::size_t>;

  explicit ScriptedPages(std::size_t page_bytes) : page_(page_bytes) {}
  ~ScriptedPages() override {
    EXPECT_EQ(reservations.size(), 0U) << "addresses were kept";
    EXPECT_EQ(behind.size(), 0U) << "pages were left mapped";
    EXPECT_EQ(parked_.size(), 0U) << "pages were dropped";
  }

  // What the test decides.
  std::function<void()> on_call;  ///< runs before every call that can throw; may throw in its place
  bool shifts = false;            ///< whether pages can move without their contents
  /// This fraction of what is created is a piece, from a page to 32 MiB; 0: single pages.
  std::size_t pieces = 0;
  std::size_t capacity = SIZE_MAX / 4;
  std::size_t address_limit = SIZE_MAX / 4;  ///< the most bytes that one reservation can have

  // What it sees.
  std::map<std::uintptr_t, std::size_t> reservations;  ///< address to bytes
  std::map<std::uintptr_t, std::size_t> behind;        ///< address to the number of the page behind it
  std::size_t calls = 0;
  std::size_t live_bytes = 0, peak_bytes = 0;
  std::size_t moves = 0;  ///< runs of pages taken from one place to another

  /// The pages behind `[base, base + bytes)`, whole or in part.
  [[nodiscard]] Numbers numbers(std::uintptr_t base, std::size_t bytes) const {
    Numbers result;
    for (auto at = base & ~(page_ - 1); at < base + bytes; at += page_) {
      auto const found = behind.find(at);
      EXPECT_NE(found, behind.end()) << "nothing lies behind an address in use";
      result.push_back(found == behind.end() ? 0 : found->second);
    }
    return result;
  }

  [[nodiscard]] std::size_t page_bytes() const noexcept override { return page_; }
  [[nodiscard]] std::size_t piece_bytes(std::size_t bytes) const noexcept override {
    return pieces == 0 ? page_ : std::max(page_, std::bit_floor(std::min(bytes / pieces, std::size_t{32} << 20)));
  }

  [[nodiscard]] AddressRange reserve(std::size_t bytes) override {
    call(bytes);
    if (bytes > address_limit)
      throw OutOfMemory({.where = "addresses", .requested = bytes, .holders = {}, .reason = {}});
    AddressRange const range{next_address_, bytes};
    next_address_ += bytes + 16 * page_;
    reservations.emplace(range.base, bytes);
    return range;
  }

  void give_up(AddressRange range) noexcept override {
    auto const found = reservations.find(range.base);
    ASSERT_NE(found, reservations.end()) << "not a reservation";
    EXPECT_EQ(found->second, range.bytes);
    EXPECT_EQ(mapped(range), 0U) << "pages are still mapped there";
    reservations.erase(found);
  }

  [[nodiscard]] Pages create_pages(std::size_t bytes) override {
    call(bytes);
    if (bytes > capacity - live_bytes) {
      throw OutOfMemory({.where = "scripted", .requested = bytes, .holders = {}, .reason = {}});
    }
    live_bytes += bytes;
    peak_bytes = std::max(peak_bytes, live_bytes);
    Numbers fresh;
    auto const in_piece = piece_bytes(bytes) / page_;
    for (auto left = bytes / page_; in_piece > 1 && left >= in_piece; left -= in_piece) {
      piece_of_[next_number_ + (bytes / page_ - left)] = in_piece;
    }
    for (std::size_t i = 0; i < bytes / page_; ++i) fresh.push_back(next_number_++);
    return park(fresh);
  }

  void free_pages(Pages pages) noexcept override {
    EXPECT_EQ(parked_.erase(pages.handle), 1U) << "no such pages";
    live_bytes -= pages.bytes;
  }

  void map(AddressRange range, Pages pages) override {
    call(range.bytes);
    check(range);
    EXPECT_EQ(mapped(range), 0U) << "something is mapped there";
    auto const found = parked_.find(pages.handle);
    ASSERT_NE(found, parked_.end()) << "no such pages";
    ASSERT_EQ(found->second.size() * page_, range.bytes);
    for (std::size_t i = 0; i < found->second.size(); ++i) behind[range.base + i * page_] = found->second[i];
    parked_.erase(found);
  }

  [[nodiscard]] Pages unmap(AddressRange range) override {
    call(range.bytes);
    ++moves;
    return park(take_away(range));
  }

  [[nodiscard]] bool shift(AddressRange from, AddressRange to) override {
    if (!shifts) return false;
    call(from.bytes);
    check(to);
    EXPECT_EQ(from.bytes, to.bytes);
    EXPECT_EQ(mapped(to), 0U) << "something is mapped there";
    ++moves;
    auto const pages = take_away(from);
    for (std::size_t i = 0; i < pages.size(); ++i) behind[to.base + i * page_] = pages[i];
    return true;
  }

 private:
  void call(std::size_t bytes) {
    EXPECT_TRUE(bytes != 0 && bytes % page_ == 0) << bytes << " bytes are not whole pages";
    ++calls;
    if (on_call) on_call();
  }

  void check(AddressRange range) const {
    auto after = reservations.upper_bound(range.base);
    bool const inside =
        after != reservations.begin() && (--after, range.base + range.bytes <= after->first + after->second);
    EXPECT_TRUE(inside && (range.base - after->first) % page_ == 0) << "not whole pages of a reservation";
  }

  [[nodiscard]] std::size_t mapped(AddressRange range) const {
    return static_cast<std::size_t>(
        std::distance(behind.lower_bound(range.base), behind.lower_bound(range.base + range.bytes)));
  }

  [[nodiscard]] Numbers take_away(AddressRange range) {
    check(range);
    EXPECT_EQ(mapped(range) * page_, range.bytes) << "not all of it is mapped";
    auto const first = behind.lower_bound(range.base), last = behind.lower_bound(range.base + range.bytes);
    Numbers numbers;
    for (auto it = first; it != last; ++it) numbers.push_back(it->second);
    behind.erase(first, last);
    check_pieces(numbers);
    return numbers;
  }

  void check_pieces(Numbers const& numbers) const {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      auto const after = piece_of_.upper_bound(numbers[i]);
      if (after == piece_of_.begin()) continue;
      auto const& [first, count] = *std::prev(after);
      if (numbers[i] >= first + count) continue;
      bool const begins = numbers[i] == first || (i > 0 && numbers[i - 1] + 1 == numbers[i]);
      bool const ends = numbers[i] + 1 == first + count || (i + 1 < numbers.size() && numbers[i + 1] == numbers[i] + 1);
      ASSERT_TRUE(begins && ends) << "a piece is cut";
    }
  }

  [[nodiscard]] Pages park(Numbers numbers) {
    Pages const pages{next_handle_++, numbers.size() * page_};
    parked_.emplace(pages.handle, std::move(numbers));
    return pages;
  }

  std::size_t page_;
  std::uintptr_t next_address_ = std::uintptr_t{1} << 40;
  std::uintptr_t next_handle_ = 1;
  std::size_t next_number_ = 1;
  std::map<std::size_t, std::size_t> piece_of_;  ///< the number of a piece's first page to how many it has
  std::map<std::uintptr_t, Numbers> parked_;
};

}  // namespace unimem
