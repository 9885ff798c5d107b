#pragma once

#include <unimem/core/export.hpp>

#include <compare>
#include <cstddef>
#include <functional>
#include <source_location>
#include <string_view>

namespace unimem {

/// A name that is stored once for the whole process: one pointer wide, compared by that pointer, never freed. Buffers,
/// blocks and usage records carry names by the million, and a program has only a few different ones.
///
/// Thread-safe.
class UNIMEM_API Name {
 public:
  /// The empty name.
  constexpr Name() = default;

  /// Looks `text` up, storing it the first time. O(length).
  explicit Name(std::string_view text);

  /// What stands for a place in a program where no name was given: its file, with the folder it is in, and its line, as
  /// in "solver/heat.cpp:12". Empty for a place that says nothing, as a default-constructed one. Costs a look into a
  /// table of the process's; the first time what a name costs.
  [[nodiscard]] static Name of(std::source_location const& place);

  /// The same for a place in a program of another language. Costs what a name does.
  [[nodiscard]] static Name of(std::string_view file, std::size_t line);

  /// Valid for ever.
  [[nodiscard]] std::string_view view() const noexcept { return text_ == nullptr ? std::string_view{} : *text_; }
  [[nodiscard]] bool empty() const noexcept { return text_ == nullptr; }

  friend constexpr bool operator==(Name, Name) = default;

 private:
  friend struct std::hash<Name>;
  std::string_view const* text_ = nullptr;
};

}  // namespace unimem

template <>
struct std::hash<unimem::Name> {
  [[nodiscard]] std::size_t operator()(unimem::Name name) const noexcept {
    return std::hash<void const*>{}(name.text_);
  }
};
