#include "manager/taken_memory.hpp"

#include <algorithm>

namespace unimem::detail {

void TakenByOperation::add(TakenMemory& on, std::size_t bytes) {
  auto* part = &first_;
  if (first_.on != nullptr && first_.on != &on) {
    auto const found = std::ranges::find(beside_, &on, &Part::on);
    part = found != beside_.end() ? &*found : &beside_.emplace_back();
  }
  part->on = &on;
  part->bytes += bytes;
  on.add(bytes);
}

std::size_t TakenByOperation::of(TakenMemory const& on) const noexcept {
  if (first_.on == &on) return first_.bytes;
  auto const found = std::ranges::find(beside_, &on, &Part::on);
  return found != beside_.end() ? found->bytes : 0;
}

void TakenByOperation::clear_all() noexcept {
  first_.on->subtract(first_.bytes);
  for (auto const& [on, bytes] : beside_) on->subtract(bytes);
  first_ = {};
  beside_.clear();
}

}  // namespace unimem::detail
