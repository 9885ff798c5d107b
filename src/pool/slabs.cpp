#include "pool/slabs.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::size_t word_bits = 64;

/// A slab is this large, or this many blocks where those are more, or as many as it can have: small enough that a class
/// with one block wastes little, large enough that a new one is rare.
constexpr std::size_t usual_slab = std::size_t{32} << 10;
constexpr std::size_t fewest_blocks = 4;

/// How many slabs are looked at for a better place: those of one list differ little, so that more looks hardly pay.
constexpr int most_slabs_seen = 64;

}  // namespace

Slabs::~Slabs() {
  for (auto const& slab : slabs_) memory_.give(slab->stretch);
}

std::size_t Slabs::class_of(std::size_t capacity) noexcept {
  if (capacity <= smallest_block) return 0;
  // Capacities are 17…32 sixteenths of a power of two.
  auto const power = std::bit_floor(capacity - 1);
  auto const doubling = static_cast<std::size_t>(std::countr_zero(power / smallest_block));
  return 16 * doubling + (capacity >> (std::countr_zero(power) - 4)) - 16;
}

bool Slabs::has(std::size_t bytes) const noexcept {
  auto const& of = classes_[class_of(block_capacity(bytes))];
  return of.occupied != 0 || of.empty != nullptr;
}

std::size_t Slabs::slab_bytes(std::size_t bytes) noexcept {
  auto const capacity = std::max(block_capacity(bytes), smallest_block);
  auto const blocks = std::clamp(usual_slab / capacity, fewest_blocks, most_blocks);
  return blocks * capacity;
}

std::size_t Slabs::list_of(Slab const& slab) noexcept {
  return (std::size_t{slab.used} * fullness_lists - 1) / slab.blocks;
}

SlabBlock Slabs::take(std::size_t bytes) {
  auto const capacity = block_capacity(bytes);
  auto& of = classes_[class_of(capacity)];
  Slab* slab = nullptr;
  if (of.occupied != 0) {
    slab = of.open[static_cast<std::size_t>(std::bit_width(of.occupied)) - 1];
    unlink(of, *slab);
  } else if (of.empty != nullptr) {
    slab = std::exchange(of.empty, nullptr);
  } else {
    slab = &new_slab(capacity);
  }
  return cut(of, *slab);
}

SlabBlock Slabs::take_instead_of(SlabBlock used) noexcept {
  auto const& slab = *used.slab;
  auto& of = classes_[class_of(slab.capacity)];
  Slab* best = nullptr;
  int looks = 0;
  for (auto list = fullness_lists; best == nullptr && list-- > list_of(slab);) {
    for (auto* one = of.open[list]; one != nullptr && looks < most_slabs_seen; one = one->after, ++looks) {
      if (one != &slab && one->used >= std::max(slab.used, best == nullptr ? 0 : best->used + 1)) best = one;
    }
  }
  if (best == nullptr) return {};
  unlink(of, *best);
  return cut(of, *best);
}

SlabBlock Slabs::cut(Class& of, Slab& slab) noexcept {
  std::size_t word = 0;
  while (slab.free[word] == 0) ++word;
  auto const bit = static_cast<std::size_t>(std::countr_zero(slab.free[word]));
  slab.free[word] &= slab.free[word] - 1;
  ++slab.used;
  used_ += slab.capacity;
  link(of, slab);
  return {&slab, static_cast<std::uint32_t>(word * word_bits + bit)};
}

void Slabs::give(SlabBlock block) noexcept {
  auto& slab = *block.slab;
  auto& of = classes_[class_of(slab.capacity)];
  unlink(of, slab);
  slab.free[block.number / word_bits] |= std::uint64_t{1} << block.number % word_bits;
  --slab.used;
  used_ -= slab.capacity;
  if (slab.used != 0) return link(of, slab);
  if (!keeps_empty_ || of.empty != nullptr) return give_back(slab);
  of.empty = &slab;
}

std::size_t Slabs::trim() noexcept {
  auto const before = reserved_;
  for (auto& of : classes_) {
    if (of.empty != nullptr) give_back(*std::exchange(of.empty, nullptr));
  }
  return before - reserved_;
}

Slab& Slabs::new_slab(std::size_t capacity) {
  // Everything that can fail comes first.
  if (slabs_.size() == slabs_.capacity()) slabs_.reserve(2 * slabs_.size() + 16);
  spare_.reserve(slabs_.capacity());
  if (spare_.empty()) spare_.push_back(std::make_unique<Slab>());
  auto const stretch = memory_.take(slab_bytes(capacity));

  auto slab = std::move(spare_.back());
  spare_.pop_back();
  *slab = {};
  slab->stretch = stretch;
  slab->capacity = capacity;
  slab->blocks = static_cast<std::uint32_t>(std::min(stretch.bytes / capacity, most_blocks));
  for (std::uint32_t block = 0; block < slab->blocks; ++block) {
    slab->free[block / word_bits] |= std::uint64_t{1} << block % word_bits;
  }
  slab->place = slabs_.size();
  reserved_ += stretch.bytes;
  ++count_;
  slabs_.push_back(std::move(slab));
  return *slabs_.back();
}

void Slabs::give_back(Slab& slab) noexcept {
  memory_.give(slab.stretch);
  reserved_ -= slab.stretch.bytes;
  --count_;
  auto const place = slab.place;
  std::swap(slabs_[place], slabs_.back());
  slabs_[place]->place = place;
  spare_.push_back(std::move(slabs_.back()));
  slabs_.pop_back();
}

Slab*& Slabs::head(Class& of, Slab const& slab) noexcept {
  return slab.used == slab.blocks ? of.full : of.open[list_of(slab)];
}

void Slabs::link(Class& of, Slab& slab) noexcept {
  auto*& first = head(of, slab);
  slab.before = nullptr;
  slab.after = first;
  if (first != nullptr) first->before = &slab;
  first = &slab;
  if (slab.used != slab.blocks) of.occupied |= 1U << list_of(slab);
}

void Slabs::unlink(Class& of, Slab& slab) noexcept {
  if (slab.after != nullptr) slab.after->before = slab.before;
  if (slab.before != nullptr) {
    slab.before->after = slab.after;
    return;
  }
  head(of, slab) = slab.after;
  if (slab.after == nullptr && slab.used != slab.blocks) of.occupied &= ~(1U << list_of(slab));
}

void Slabs::validate() const {
  std::size_t reserved = 0, used = 0, listed = 0;
  for (std::size_t place = 0; place < slabs_.size(); ++place) {
    auto const& slab = *slabs_[place];
    if (slab.place != place) throw std::logic_error("Slabs: a slab does not know its place");
    std::uint32_t free = 0;
    for (auto const word : slab.free) free += static_cast<std::uint32_t>(std::popcount(word));
    if (slab.used + free != slab.blocks) throw std::logic_error("Slabs: blocks are miscounted");
    if (slab.blocks * slab.capacity > slab.stretch.bytes) throw std::logic_error("Slabs: blocks beyond the slab");
    reserved += slab.stretch.bytes;
    used += slab.used * slab.capacity;
  }
  for (std::size_t index = 0; index < class_count; ++index) {
    auto const& of = classes_[index];
    auto const walk = [&](Slab const* slab, auto&& belongs) {
      Slab const* before = nullptr;
      for (; slab != nullptr; before = std::exchange(slab, slab->after), ++listed) {
        if (class_of(slab->capacity) != index) throw std::logic_error("Slabs: a slab in another class");
        if (slab->before != before) throw std::logic_error("Slabs: a list's links disagree");
        if (!belongs(*slab)) throw std::logic_error("Slabs: a slab in the wrong list");
      }
    };
    for (std::size_t list = 0; list < fullness_lists; ++list) {
      if ((of.occupied >> list & 1) != (of.open[list] != nullptr ? 1U : 0U)) {
        throw std::logic_error("Slabs: a bit contradicts its list");
      }
      walk(of.open[list],
           [list](Slab const& slab) { return slab.used != 0 && slab.used != slab.blocks && list_of(slab) == list; });
    }
    walk(of.full, [](Slab const& slab) { return slab.used == slab.blocks; });
    if (of.empty != nullptr) {
      if (of.empty->used != 0) throw std::logic_error("Slabs: the empty slab is not");
      ++listed;
    }
  }
  if (listed != slabs_.size() || count_ != slabs_.size()) throw std::logic_error("Slabs: a slab is in no list");
  if (reserved != reserved_ || used != used_) throw std::logic_error("Slabs: the sums are wrong");
  if (spare_.capacity() < slabs_.size()) throw std::logic_error("Slabs: no room for a descriptor that comes back");
}

}  // namespace unimem::detail
