#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include <sys/auxv.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace unimem {

std::optional<std::string> environment(std::string_view name) {
  // Not getenv: with rights that its caller does not have (AT_SECURE) a process would load and write what he names.
  char const* const value = ::secure_getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool runs_with_other_rights() noexcept {
  return ::getauxval(AT_SECURE) != 0;
}

bool environment_flag(std::string_view name, bool otherwise, std::string_view values) {
  auto const value = environment(name);
  if (!value) return otherwise;
  constexpr std::array<std::string_view, 4> yes{"1", "true", "yes", "on"};
  constexpr std::array<std::string_view, 4> no{"0", "false", "no", "off"};
  if (std::ranges::find(yes, *value) != yes.end()) return true;
  if (std::ranges::find(no, *value) != no.end()) return false;
  throw InvalidArgument(std::string(name), *value, std::string(values));
}

std::optional<std::uint64_t> environment_size(std::string_view name) {
  auto const value = environment(name);
  if (!value) return std::nullopt;
  return parse_size(*value, name);
}

}  // namespace unimem
