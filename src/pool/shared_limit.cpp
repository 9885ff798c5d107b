#include "pool/shared_limit.hpp"

#include <fmt/format.h>

namespace unimem::detail {

std::string LimitShare::reason() const {
  return fmt::format("limit reached on {}", whole_->name());
}

void LimitShare::refuse(std::string where, std::size_t bytes) {
  refusals_.fetch_add(1, std::memory_order_relaxed);  // of this thread, which looks at it next
  throw OutOfMemory(
      {.where = std::move(where), .requested = bytes, .limit = most(), .holders = {}, .reason = reason()});
}

template <class Work>
auto SharedPages::with(std::size_t bytes, Work const& work) {
  if (!share_.take(bytes)) share_.refuse("pages", bytes);
  try {
    return work();
  } catch (...) {
    share_.give_back(bytes);
    throw;
  }
}

Pages SharedPages::create_pages(std::size_t bytes) {
  return with(bytes, [&] { return source_.create_pages(bytes); });
}

void SharedPages::free_pages(Pages pages) noexcept {
  source_.free_pages(pages);
  share_.give_back(pages.bytes);
}

void SharedPages::populate(AddressRange range) {
  with(range.bytes, [&] { source_.populate(range); });
}

void SharedPages::discard(AddressRange range) {
  source_.discard(range);
  share_.give_back(range.bytes);
}

}  // namespace unimem::detail
