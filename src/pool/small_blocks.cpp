#include "pool/small_blocks.hpp"

#include <unimem/core/error.hpp>

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace unimem::detail {

SmallBlocks::SmallBlocks(MemoryPool& pool, Name name)
    : pool_(pool), name_(name), most_alignment_(std::min(largest, pool.device().info().alignment)) {
  for (std::size_t i = 0; i < classes_.size(); ++i) classes_[i].cell = (i + 1) * step;
}

bool SmallBlocks::serves(std::size_t bytes, std::size_t alignment) const noexcept {
  return bytes <= largest && std::has_single_bit(alignment) && alignment <= most_alignment_;
}

std::size_t SmallBlocks::cell_of(std::size_t bytes, std::size_t alignment) noexcept {
  auto const unit = std::max(step, alignment);
  return (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
}

SmallBlocks::Class& SmallBlocks::class_of(std::size_t bytes, std::size_t alignment) noexcept {
  return classes_[cell_of(bytes, alignment) / step - 1];
}

// Relaxed: about how many there are is enough, also if two threads count at once.
bool SmallBlocks::goes_alone(std::size_t bytes, std::size_t alignment) noexcept {
  auto& of = class_of(bytes, alignment);
  auto const alone = of.alone.load(std::memory_order_relaxed);
  if (alone >= few || of.paged.load(std::memory_order_relaxed)) return false;
  of.alone.store(alone + 1, std::memory_order_relaxed);
  return true;
}

void SmallBlocks::was_not_taken(std::size_t bytes, std::size_t alignment) noexcept {
  static_cast<void>(class_of(bytes, alignment).one_less_alone());
}

void* SmallBlocks::take(std::size_t bytes, std::size_t alignment) {
  auto& of = class_of(bytes, alignment);
  std::unique_ptr<Page> fresh;  // whose block goes back without the lock, should it come to nothing
  std::unique_lock lock{of.mutex};
  if (of.roomy.empty()) {
    fresh = std::move(of.spare);
    lock.unlock();  // the pool may evict, and call the user's code
    if (fresh == nullptr) fresh = of.new_page();
    AcquireOptions options;
    options.name = name_;
    try {
      fresh->block = pool_.acquire(page_bytes, options);
    } catch (OutOfMemory const&) {
      return nullptr;  // there may be room for the little that is wanted
    }
    lock.lock();
    of.add(fresh);
  }
  auto& page = *of.roomy.back();
  auto const word = std::ranges::find_if(page.free, [](std::uint64_t cells) { return cells != 0; });
  auto const bit = static_cast<std::size_t>(std::countr_zero(*word));
  auto const cell = static_cast<std::size_t>(word - page.free.begin()) * 64 + bit;
  *word &= *word - 1;
  auto& note = page.notes[cell];
  note.bytes = static_cast<std::uint16_t>(bytes & 0x1FFU);
  note.alignment = static_cast<std::uint16_t>(std::countr_zero(alignment) & 0xF);
  note.used = note.live = true;
  of.live_bytes += bytes;
  ++of.live_blocks;
  if (++page.live == page.notes.size()) of.set_full(page);
  return static_cast<std::byte*>(page.block.data()) + cell * of.cell;
}

SmallBlocks::Return SmallBlocks::give(std::uintptr_t address, std::size_t bytes, std::size_t alignment) noexcept {
  auto& of = class_of(bytes, alignment);
  // Who has the address of a block in a page has seen that there are pages.
  if (!of.paged.load(std::memory_order_relaxed)) return of.one_less_alone();
  Allocation emptied;  // given back without the lock
  std::lock_guard const lock{of.mutex};
  auto const [page, cell] = of.find(address);
  if (page == nullptr) return of.one_less_alone();
  auto& note = page->notes[cell];
  if (!note.live || note.bytes != bytes || note.alignment != std::countr_zero(alignment)) return judge(note, bytes);
  note.live = false;
  page->free[cell / 64] |= std::uint64_t{1} << cell % 64;
  of.live_bytes -= bytes;
  --of.live_blocks;
  if (page->among_roomy == nowhere) of.set_roomy(*page);
  if (--page->live == 0) emptied = of.remove(address - cell * of.cell);
  return Return::taken;
}

SmallBlocks::Return SmallBlocks::judge(Note note, std::size_t bytes) noexcept {
  if (!note.used) return Return::unknown;
  if (!note.live) return Return::twice;
  return note.bytes == bytes ? Return::other_alignment : Return::other_size;
}

SmallBlocks::Return SmallBlocks::judge(std::uintptr_t address, std::size_t bytes) const noexcept {
  for (auto const& of : classes_) {
    std::lock_guard const lock{of.mutex};
    auto const [page, cell] = of.find(address);
    if (page != nullptr) return judge(page->notes[cell], bytes);
  }
  return Return::unknown;
}

SmallBlocks::Live SmallBlocks::live() const {
  Live all;
  for (auto const& of : classes_) {
    std::lock_guard const lock{of.mutex};
    all.blocks += of.live_blocks;
    all.bytes += of.live_bytes;
  }
  return all;
}

void SmallBlocks::validate() const {
  for (auto const& of : classes_) {
    std::lock_guard const lock{of.mutex};
    of.validate();
  }
}

SmallBlocks::Return SmallBlocks::Class::one_less_alone() noexcept {
  auto const before = alone.load(std::memory_order_relaxed);
  if (before != 0) alone.store(before - 1, std::memory_order_relaxed);
  return Return::unknown;
}

SmallBlocks::Found SmallBlocks::Class::find(std::uintptr_t address) const noexcept {
  auto const behind = std::ranges::upper_bound(pages, address, {}, &Place::begin);
  if (behind == pages.begin()) return {};
  auto const& place = *std::prev(behind);
  auto const offset = address - place.begin;
  if (offset % cell != 0 || offset / cell >= place.page->notes.size()) return {};
  return {place.page.get(), offset / cell};
}

std::unique_ptr<SmallBlocks::Page> SmallBlocks::Class::new_page() const {
  auto page = std::make_unique<Page>();
  page->notes.resize(page_bytes / cell);
  for (std::size_t i = 0; i < page->notes.size(); ++i) page->free[i / 64] |= std::uint64_t{1} << i % 64;
  return page;
}

void SmallBlocks::Class::add(std::unique_ptr<Page>& page) {
  if (pages.size() == pages.capacity()) pages.reserve(2 * pages.size() + 1);
  if (roomy.capacity() < pages.capacity()) roomy.reserve(pages.capacity());
  auto const begin = reinterpret_cast<std::uintptr_t>(page->block.data());
  set_roomy(*page);
  pages.insert(std::ranges::upper_bound(pages, begin, {}, &Place::begin), Place{begin, std::move(page)});
  paged.store(true, std::memory_order_relaxed);
}

Allocation SmallBlocks::Class::remove(std::uintptr_t begin) noexcept {
  auto const place = std::ranges::lower_bound(pages, begin, {}, &Place::begin);
  set_full(*place->page);
  auto block = std::move(place->page->block);
  spare = std::move(place->page);
  std::ranges::fill(spare->notes, Note{});
  pages.erase(place);
  if (!pages.empty()) return block;
  paged.store(false, std::memory_order_relaxed);
  alone.store(0, std::memory_order_relaxed);  // about: what was miscounted is not for good
  return block;
}

void SmallBlocks::Class::set_roomy(Page& page) noexcept {
  page.among_roomy = roomy.size();
  roomy.push_back(&page);
}

void SmallBlocks::Class::set_full(Page& page) noexcept {
  roomy.back()->among_roomy = page.among_roomy;
  std::swap(roomy[page.among_roomy], roomy.back());
  roomy.pop_back();
  page.among_roomy = nowhere;
}

void SmallBlocks::Class::validate() const {
  auto const require = [](bool holds, char const* broken) {
    if (!holds) throw std::logic_error(std::string("SmallBlocks: ") + broken);
  };
  require(std::ranges::is_sorted(pages, {}, &Place::begin), "the pages are in no order");
  std::size_t blocks = 0, bytes = 0, with_room = 0;
  for (auto const& [begin, page] : pages) {
    std::size_t live = 0, free = 0;
    for (auto const& note : page->notes) {
      live += note.live ? 1 : 0;
      bytes += note.live ? note.bytes : 0;
    }
    for (auto const word : page->free) free += static_cast<std::size_t>(std::popcount(word));
    require(reinterpret_cast<std::uintptr_t>(page->block.data()) == begin, "a page is not where it is looked for");
    require(live == page->live && live + free == page->notes.size(), "the cells of a page do not add up");
    bool const stands = page->among_roomy < roomy.size() && roomy[page->among_roomy] == page.get();
    require(stands == (free != 0), "a page with room is not among those");
    blocks += live;
    with_room += free != 0 ? 1 : 0;
  }
  require(roomy.size() == with_room, "the pages with room do not add up");
  require(blocks == live_blocks && bytes == live_bytes, "the blocks in use do not add up");
}

}  // namespace unimem::detail
