#include <unimem/core/name.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace unimem {
namespace {

struct Stored {
  explicit Stored(std::string_view of) : text(of), view(text) {}
  Stored(Stored const&) = delete;
  Stored& operator=(Stored const&) = delete;
  std::string text;
  std::string_view view;
  Stored* next = nullptr;  ///< of its bucket
};

using Bucket = std::atomic<Stored*>;

/// All names, which stay. Without a lock, since names are made in forked children, too, whatever other threads were
/// doing at the fork: a bucket only grows, at its front. Many buckets cost little: a page that is not used is not
/// there.
constinit std::array<Bucket, std::size_t{1} << 14> buckets{};

/// The one of `text` among those from `first` up to `end`, or null.
Stored* stored_as(Stored* first, Stored const* end, std::string_view text) noexcept {
  while (first != end && first->view != text) first = first->next;
  return first == end ? nullptr : first;
}

Stored& store(std::string_view text) {
  auto& bucket = buckets[std::hash<std::string_view>{}(text) % buckets.size()];
  auto* front = bucket.load(std::memory_order_acquire);
  if (auto* const known = stored_as(front, nullptr, text)) return *known;
  auto fresh = std::make_unique<Stored>(text);
  fresh->next = front;
  // Release: a thread that finds it sees its text.
  while (!bucket.compare_exchange_weak(front, fresh.get(), std::memory_order_acq_rel, std::memory_order_acquire)) {
    if (auto* const known = stored_as(front, fresh->next, text)) return *known;
    fresh->next = front;
  }
  return *fresh.release();
}

}  // namespace

Name::Name(std::string_view text) {
  if (text.empty()) return;
  // Buffers of one name are mostly made one after the other.
  static constinit thread_local Stored const* latest = nullptr;
  if (latest == nullptr || latest->view != text) latest = &store(text);
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
