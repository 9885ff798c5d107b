#pragma once

#include <unimem/device/detail/pages.hpp>

#include <atomic>
#include <cstddef>
#include <functional>

namespace unimem {

/// Another's pages, which counts what is taken and tells before memory is taken or given back. As thread-safe as the
/// other is, but for its hooks, which are set while nobody calls.
class WatchedPages final : public PageSource {
 public:
  explicit WatchedPages(PageSource& source) : source_(source) {}

  // What the test decides; each may throw in place of the call.
  std::function<void()> on_create;
  std::function<void()> on_unmap;

  [[nodiscard]] std::size_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] std::size_t calls() const noexcept { return calls_; }

  [[nodiscard]] std::size_t page_bytes() const noexcept override { return source_.page_bytes(); }

  [[nodiscard]] AddressRange reserve(std::size_t bytes) override {
    ++calls_;
    return source_.reserve(bytes);
  }
  void give_up(AddressRange range) noexcept override {
    ++calls_;
    source_.give_up(range);
  }
  [[nodiscard]] Pages create_pages(std::size_t bytes) override {
    ++calls_;
    if (on_create) on_create();
    auto const pages = source_.create_pages(bytes);
    live_bytes_ += bytes;
    return pages;
  }
  void free_pages(Pages pages) noexcept override {
    ++calls_;
    source_.free_pages(pages);
    live_bytes_ -= pages.bytes;
  }
  void map(AddressRange range, Pages pages) override {
    ++calls_;
    source_.map(range, pages);
  }
  [[nodiscard]] Pages unmap(AddressRange range) override {
    ++calls_;
    if (on_unmap) on_unmap();
    return source_.unmap(range);
  }

 private:
  PageSource& source_;
  std::atomic<std::size_t> live_bytes_{0};
  std::atomic<std::size_t> calls_{0};
};

}  // namespace unimem
