#pragma once

#include <unimem/core/export.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace unimem {

/// What a published buffer is called in messages. A value: two numbers, copied and compared freely, that keep nothing
/// alive.
///
/// `registry` is drawn at random by every registry of every process, a forked child's included, so that a name of
/// another registry's is not mistaken for one of ours; `number` counts what a registry publishes, so that none is ever
/// given twice. It protects from mix-ups, not from malice: a holder of one id can guess its neighbours.
struct BufferId {
  std::uint64_t registry = 0;
  std::uint64_t number = 0;

  /// Whether it names anything: default-constructed ids do not.
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return registry != 0 && number != 0; }

  friend constexpr auto operator<=>(BufferId const&, BufferId const&) = default;
};

/// "00c0ffee15900d1d-42": sixteen hexadecimal digits and a number. "none" for an id of nothing.
[[nodiscard]] UNIMEM_API std::string to_string(BufferId id);

}  // namespace unimem

template <>
struct std::hash<unimem::BufferId> {
  [[nodiscard]] std::size_t operator()(unimem::BufferId const& id) const noexcept {
    // The one is random already, the other counts: an odd factor spreads it over all bits.
    return static_cast<std::size_t>(id.registry ^ (id.number * 0x9E37'79B9'7F4A'7C15U));
  }
};
