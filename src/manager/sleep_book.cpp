#include "manager/sleep_book.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <utility>

namespace unimem::detail {

bool tag_covers(std::string_view tag, std::string_view name) noexcept {
  if (tag.empty() || tag == name) return true;
  return name.starts_with(tag) && (name[tag.size()] == '/' || name[tag.size()] == '.');
}

void SleepBook::begin(std::string const& tag) {
  std::lock_guard const lock{mutex_};
  for (auto const& [asleep, sleep] : sleeps_) {
    if (!tag_covers(tag, asleep) && !tag_covers(asleep, tag)) continue;
    throw InvalidArgument("tag", fmt::format("'{}'", tag),
                          fmt::format("one of buffers that are awake; '{}' is asleep", asleep));
  }
  sleeps_.try_emplace(tag);
}

void SleepBook::keep(std::string const& tag, std::vector<SleepingPart> parts) noexcept {
  std::lock_guard const lock{mutex_};
  auto const found = sleeps_.find(tag);
  if (found == sleeps_.end()) return;
  found->second.changing = false;
  found->second.parts = std::move(parts);
}

void SleepBook::forget(std::string const& tag) noexcept {
  std::lock_guard const lock{mutex_};
  if (auto const found = sleeps_.find(tag); found != sleeps_.end()) sleeps_.erase(found);
}

std::vector<SleepingPart> SleepBook::take(std::string const& tag) {
  std::lock_guard const lock{mutex_};
  auto const found = sleeps_.find(tag);
  if (found == sleeps_.end()) {
    std::vector<std::string> asleep;
    asleep.reserve(sleeps_.size());
    for (auto const& [name, sleep] : sleeps_) asleep.push_back(name);
    throw NotFound("sleeping tag", tag, std::move(asleep), "sleep puts buffers to sleep by their tag");
  }
  if (found->second.changing) {
    throw InvalidArgument("tag", fmt::format("'{}'", tag), "one that no other thread puts to sleep or wakes just now");
  }
  found->second.changing = true;
  return found->second.parts;
}

}  // namespace unimem::detail
