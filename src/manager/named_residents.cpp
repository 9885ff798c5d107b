#include "manager/named_residents.hpp"

#include <utility>

namespace unimem::detail {

void NamedResidents::add(Resident& resident) {
  std::lock_guard const lock{mutex_};
  residents_.insert(&resident);
}

void NamedResidents::remove(Resident& resident) noexcept {
  std::lock_guard const lock{mutex_};
  residents_.erase(&resident);
}

std::vector<std::shared_ptr<Resident>> NamedResidents::all() const {
  std::vector<std::shared_ptr<Resident>> found;  // goes last: what it lets go of may end, and be removed here
  std::lock_guard const lock{mutex_};
  found.reserve(residents_.size());
  for (auto* const resident : residents_) {
    if (auto held = resident->hold()) found.emplace_back(std::move(held), resident);
  }
  return found;
}

}  // namespace unimem::detail
