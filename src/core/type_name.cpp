#include "core/type_name.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace unimem::detail {

std::string type_name(std::string_view mangled) {
  std::string result{mangled};
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> const readable{abi::__cxa_demangle(result.c_str(), nullptr, nullptr, &status),
                                                        std::free};
  if (readable) result = readable.get();
  return result;
}

bool same_type(std::type_info const& one, std::type_info const& other) noexcept {
  if (&one == &other) return true;
  // What an anonymous namespace takes part in has internal linkage, and a type_info of its own in each source.
  constexpr std::string_view anonymous = "_GLOBAL__N_";
  return one == other && std::string_view{one.name()}.find(anonymous) == std::string_view::npos;
}

}  // namespace unimem::detail
