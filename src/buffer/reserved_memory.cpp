#include "buffer/reserved_memory.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "core/poison.hpp"
#include "core/system_page.hpp"
#include "device/host_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace unimem::detail {
namespace {

std::byte* addresses_for(std::size_t bytes) {
  auto const alignment = bytes >= huge_page_bytes ? huge_page_bytes : system_page_bytes();
  if (auto* const base = map_addresses(bytes, alignment, 0, PROT_READ | PROT_WRITE)) return base;
  OutOfMemory::Facts facts;
  facts.where = "host address space";
  facts.requested = bytes;
  facts.reason = fmt::format("mmap: {}", std::strerror(errno));
  throw OutOfMemory(std::move(facts));
}

}  // namespace

ReservedMemory::ReservedMemory(std::size_t bytes, std::size_t skew, std::size_t cell_bytes,
                               std::shared_ptr<void const> pools)
    : pools_(std::move(pools)),
      bytes_(bytes),
      skew_(skew),
      cell_bytes_(cell_bytes),
      reserved_((skew + bytes + cell_bytes - 1) / cell_bytes * cell_bytes),
      cells_(reserved_ / cell_bytes),
      base_(addresses_for(reserved_)) {
  // A cell counts as what it is: a huge page for the first byte that is touched would be more.
  ::madvise(base_, reserved_, MADV_NOHUGEPAGE);
}

ReservedMemory::~ReservedMemory() {
  unpoison(base_, reserved_);  // whatever the system has there next
  ::munmap(base_, reserved_);
}

auto ReservedMemory::cells_of(ByteRange range) const noexcept -> Cells {
  if (range.empty()) return {};
  return {(skew_ + range.begin) / cell_bytes_, (skew_ + range.end - 1) / cell_bytes_ + 1};
}

ByteRange ReservedMemory::range_of(std::size_t cell) const noexcept {
  auto const begin = cell * cell_bytes_;
  return {begin > skew_ ? begin - skew_ : 0, std::min(bytes_, begin + cell_bytes_ - skew_)};
}

void ReservedMemory::commit(std::size_t cell, Allocation block) {
  committed_.push_back(cell);
  give_back_pages(block.data(), block.size());
  cells_[cell].block = std::move(block);
  unpoison(address_of(cell), cell_bytes_);
}

void ReservedMemory::will_fill(Cells some) noexcept {
  auto const first = round_up(some.first * cell_bytes_, huge_page_bytes);
  auto const last = some.last * cell_bytes_ / huge_page_bytes * huge_page_bytes;
  if (first < last) ::madvise(base_ + first, last - first, MADV_HUGEPAGE);
}

void ReservedMemory::decommit(std::size_t cell) noexcept {
  give_back_pages(address_of(cell), cell_bytes_);
  auto const first = cell * cell_bytes_ / huge_page_bytes * huge_page_bytes;
  auto const last = std::min(reserved_, round_up((cell + 1) * cell_bytes_, huge_page_bytes));
  ::madvise(base_ + first, last - first, MADV_NOHUGEPAGE);  // for what comes there next; what is there stays as it is
  poison(address_of(cell), cell_bytes_);
  cells_[cell].block.release();
  auto const found = std::ranges::find(committed_, cell);
  *found = committed_.back();
  committed_.pop_back();
}

void ReservedMemory::hold(ByteRange range) noexcept {
  auto const some = cells_of(range);
  for (auto cell = some.first; cell < some.last; ++cell) cells_[cell].holds.fetch_add(1, std::memory_order_relaxed);
}

void ReservedMemory::release(ByteRange range) noexcept {
  auto const some = cells_of(range);
  // Release: what the holder did is visible to a thread that sees the count fall.
  for (auto cell = some.first; cell < some.last; ++cell) cells_[cell].holds.fetch_sub(1, std::memory_order_release);
}

}  // namespace unimem::detail
