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

}  // namespace unimem::detail
