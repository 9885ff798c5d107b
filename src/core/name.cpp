#include <unimem/core/name.hpp>

#include "core/held_over_fork.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace unimem {
namespace {

using detail::HeldOverFork;

struct Stored {
  std::string text;
  std::string_view view;
};

using Table = std::unordered_map<std::string_view, std::unique_ptr<Stored>>;

constinit std::mutex mutex;

/// The mutex is held. Never destroyed: names are read by destructors of static objects.
Table& table() {
  static auto& instance = *new Table;
  return instance;
}

void mind_forks() {
  [[maybe_unused]] static bool const held = HeldOverFork::for_good(HeldOverFork::Order::last, mutex);
}

}  // namespace

Name::Name(std::string_view text) {
  if (text.empty()) return;
  // Buffers of one name are mostly made one after the other. What is stored stays.
  static constinit thread_local Stored const* latest = nullptr;
  if (latest != nullptr && latest->view == text) {
    text_ = &latest->view;
    return;
  }
  mind_forks();
  std::lock_guard const lock{mutex};
  auto& names = table();
  auto found = names.find(text);
  if (found == names.end()) {
    auto stored = std::make_unique<Stored>();
    stored->text = text;
    stored->view = stored->text;
    auto const key = stored->view;
    found = names.emplace(key, std::move(stored)).first;
  }
  latest = found->second.get();
  text_ = &latest->view;
}

Name Name::of(std::source_location const& place) {
  // By address: the same place has the same text, as long as its library stays loaded. What is known stays so, for all
  // threads; where the table is full one place costs what a name does.
  struct Known {
    char const* file;
    std::uint_least32_t line;
    Name name;
  };
  static constexpr std::size_t known_places = 1024, tries = 8;
  static constinit std::array<std::atomic<Known const*>, known_places> all_known{};
  auto const* const file = place.file_name();
  auto const line = place.line();
  auto const first = reinterpret_cast<std::uintptr_t>(file) / 16 + std::size_t{line} * 31;
  std::atomic<Known const*>* free = nullptr;
  for (std::size_t i = 0; i < tries && free == nullptr; ++i) {
    auto& slot = all_known[(first + i) % known_places];
    auto const* const known = slot.load(std::memory_order_acquire);
    if (known == nullptr) {
      free = &slot;
    } else if (known->file == file && known->line == line) {
      return known->name;
    }
  }
  auto const name = of(file, line);
  if (free != nullptr && !name.empty()) {
    auto known = std::make_unique<Known const>(Known{file, line, name});
    Known const* expected = nullptr;
    // Release: a thread that finds it sees its text. It stays, as names do.
    if (free->compare_exchange_strong(expected, known.get(), std::memory_order_release, std::memory_order_relaxed)) {
      static_cast<void>(known.release());  // NOLINT(bugprone-unused-return-value): the table has it
    }
  }
  return name;
}

Name Name::of(std::string_view file, std::size_t line) {
  if (file.empty()) return {};
  // The last two parts: where the rest of the tree stands is each machine's own.
  auto const last = file.find_last_of('/');
  auto const before = last == std::string_view::npos || last == 0 ? last : file.find_last_of('/', last - 1);
  if (before != std::string_view::npos) file.remove_prefix(before + 1);
  return Name(std::string(file) + ":" + std::to_string(line));
}

}  // namespace unimem
