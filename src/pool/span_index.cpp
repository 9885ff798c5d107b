#include "pool/span_index.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace unimem::detail {

void SpanIndex::add(Span& span) noexcept {
  auto const list = list_of(span.bytes);
  auto*& head = lists_[list];
  span.earlier = nullptr;
  span.later = head;
  if (head != nullptr) head->earlier = &span;
  head = &span;
  occupied_[list / word_bits] |= std::uint64_t{1} << list % word_bits;
  bytes_ += span.bytes;
  ++count_;
}

void SpanIndex::remove(Span& span) noexcept {
  if (span.later != nullptr) span.later->earlier = span.earlier;
  if (span.earlier != nullptr) {
    span.earlier->later = span.later;
  } else {
    auto const list = list_of(span.bytes);
    lists_[list] = span.later;
    if (span.later == nullptr) occupied_[list / word_bits] &= ~(std::uint64_t{1} << list % word_bits);
  }
  span.earlier = span.later = nullptr;
  bytes_ -= span.bytes;
  --count_;
}

Span* SpanIndex::best_fit(std::size_t bytes, std::size_t alignment) const noexcept {
  for (auto list = list_from(list_of(bytes)); list < list_count; list = list_from(list + 1)) {
    Span* best = nullptr;
    auto looks = most_looks;
    for (auto* span = lists_[list]; span != nullptr; span = span->later) {
      auto const skipped = -span->base & (alignment - 1);
      if (span->bytes < skipped || span->bytes - skipped < bytes) continue;
      if (best == nullptr || span->bytes < best->bytes) best = span;
      if (best->bytes == bytes || --looks == 0) break;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

std::size_t SpanIndex::largest() const noexcept {
  std::size_t result = 0;
  auto const list = last_list();
  if (list < 0) return 0;
  for (auto* span = lists_[static_cast<std::size_t>(list)]; span != nullptr; span = span->later) {
    result = std::max(result, span->bytes);
  }
  return result;
}

void SpanIndex::validate(SpanKind kind) const {
  std::size_t bytes = 0, count = 0;
  for (std::size_t list = 0; list < list_count; ++list) {
    bool const occupied = (occupied_[list / word_bits] >> list % word_bits & 1) != 0;
    if (occupied != (lists_[list] != nullptr)) throw std::logic_error("SpanIndex: a bit contradicts its list");
    Span const* earlier = nullptr;
    for (auto const* span = lists_[list]; span != nullptr; earlier = span, span = span->later) {
      if (span->earlier != earlier) throw std::logic_error("SpanIndex: a list's links disagree");
      if (span->kind != kind) throw std::logic_error("SpanIndex: a span of another kind");
      if (list_of(span->bytes) != list) throw std::logic_error("SpanIndex: a span is in the wrong list");
      bytes += span->bytes;
      ++count;
    }
  }
  if (bytes != bytes_ || count != count_) throw std::logic_error("SpanIndex: the sums are wrong");
}

std::size_t SpanIndex::list_of(std::size_t bytes) const noexcept {
  auto const granules = bytes >> shift_;
  if (granules < 32) return granules;
  auto const shift = static_cast<unsigned>(std::bit_width(granules)) - 5;
  return std::min(std::size_t{16} * shift + (granules >> shift), list_count - 1);
}

std::size_t SpanIndex::list_from(std::size_t list) const noexcept {
  if (list >= list_count) return list_count;
  auto word = list / word_bits;
  auto bits = occupied_[word] & (~std::uint64_t{0} << list % word_bits);
  while (bits == 0) {
    if (++word == occupied_.size()) return list_count;
    bits = occupied_[word];
  }
  return word * word_bits + static_cast<std::size_t>(std::countr_zero(bits));
}

int SpanIndex::list_before(std::size_t list) const noexcept {
  auto word = static_cast<int>((list + word_bits - 1) / word_bits) - 1;
  for (bool first = true; word >= 0; --word, first = false) {
    auto bits = occupied_[static_cast<std::size_t>(word)];
    if (first && list % word_bits != 0) bits &= (std::uint64_t{1} << list % word_bits) - 1;
    if (bits != 0) return word * static_cast<int>(word_bits) + static_cast<int>(std::bit_width(bits)) - 1;
  }
  return -1;
}

}  // namespace unimem::detail
